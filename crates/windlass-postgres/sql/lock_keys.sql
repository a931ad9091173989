-- Who holds these keys, in order, so that two batches never wait for one another.  $3 now
select queue, key, job
from windlass.unique_keys
where (queue, key) in (select * from unnest($1::text[], $2::text[])) and (living or until > $3)
order by queue, key
for update
