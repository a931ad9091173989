-- Makes jobs the holders of keys that are free.  $1 queues, $2 keys, $3 jobs, $4 until, $5 whether they are active, $6 now
insert into windlass.unique_keys as held (queue, key, job, living, until)
select queue, key, job, $5, until
from unnest($1::text[], $2::text[], $3::uuid[], $4::timestamptz[]) as wanted (queue, key, job, until)
order by queue, key
on conflict (queue, key) do update
set job = excluded.job, living = excluded.living, until = excluded.until
where held.job = excluded.job or not (held.living or coalesce(held.until > $6, false))
returning job
