-- Frees keys that these jobs hold.
delete from windlass.unique_keys as held
using unnest($1::text[], $2::text[], $3::uuid[]) as free (queue, key, job)
where held.queue = free.queue and held.key = free.key and held.job = free.job
