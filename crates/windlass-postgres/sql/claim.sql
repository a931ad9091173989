-- Claims the first jobs of a lane. With $10, takes nothing if the queue has limits, a due job has a concurrency key, or the
-- claim was made before.
--   $1 queue, $2 lane, $3 now, $4 kinds, $5-$7 start, $8 limit, $9 claim, $10 whether to check the conditions,
--   $11 lease until, $12 settings, $13 worker, $14 true: only these kinds, false: all other kinds
-- The attempt counter stops at its maximum instead of overflowing; the driver parks such a job as unreadable.
with taken as (
    update windlass.jobs
    set due = false, lease_until = $11, settings = $12, worker = $13, attempt = attempt + (attempt < 2147483647)::integer, started_at = $3,
        first_started_at = coalesce(first_started_at, $3), cancel_requested = false
    where id = any (array(
        select id from windlass.jobs
        where queue = $1 and lane = $2 and due and (rank, run_at, id) >= ($5, $6, $7) and run_at <= $3
          and (deadline is null or deadline >= $3) and concurrency_key is null
          and (kind = any ($4)) = $14
          and not ($10 and exists (
              select from windlass.queues where name = $1 and bounded
              union all select from windlass.jobs where queue = $1 and due and concurrency_key is not null
              union all select from windlass.claims where id = $9
          ))
        order by rank, run_at, id
        limit $8
        for update skip locked
    ))
    returning *
), recorded as (
    insert into windlass.claims as claim (id, at, jobs, attempts)
    select $9, $3, array_agg(id), array_agg(attempt) from taken having count(*) > 0
    on conflict (id) do update
    set jobs = claim.jobs || excluded.jobs, attempts = claim.attempts || excluded.attempts
)
select /* columns */ from taken
