-- The holders of keys. Locks them in order, so that two batches cannot deadlock.  $1 queues, $2 keys, $3 now
select queue, key, job
from windlass.unique_keys
where (queue, key) in (select * from unnest($1::text[], $2::text[])) and (living or until > $3)
order by queue, key
for update
