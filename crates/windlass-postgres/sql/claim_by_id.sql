-- Claims these jobs, if they still wait, also if they are parked.
--   $1 ids, $2 now, $3 claim, $4 lease until, $5 settings, $6 worker, $7 queue
-- The attempt counter stops at its maximum instead of overflowing; the driver sets such a job aside as unreadable.
with taken as (
    update windlass.jobs
    set due = false, lane = lane % 2, lease_until = $4, settings = $5, worker = $6, attempt = attempt + (attempt < 2147483647)::integer, started_at = $2,
        first_started_at = coalesce(first_started_at, $2), cancel_requested = false
    where id = any (array(
        select id from windlass.jobs where id = any ($1) and due and queue = $7 and run_at <= $2 order by id for update skip locked
    ))
    returning *
), recorded as (
    insert into windlass.claims (id, at, jobs, attempts)
    select $3, $2, array_agg(id), array_agg(attempt) from taken having count(*) > 0
    on conflict (id) do nothing
)
select /* columns */ from taken
