-- The number of jobs of each queue in each state, and the oldest ready `run_at`.  $1 now
-- One statement, so one snapshot: the tallies and what is counted here fit together. It reads the running jobs, the jobs
-- whose time has come since the last claim, and one entry for each kind and queue with due jobs.
with recursive pair (kind, queue) as (
    (select kind, queue from windlass.jobs where due and lease_until is null order by kind, queue limit 1)
    union all
    select next.kind, next.queue from pair, lateral (
        select kind, queue from windlass.jobs
        where due and lease_until is null and (kind, queue) > (pair.kind, pair.queue)
        order by kind, queue
        limit 1
    ) as next
), tally as (
    select
        queue, sum(active) as active, sum(retries) as retries, sum(future) as future, sum(succeeded) as succeeded,
        sum(dead) as dead, sum(cancelled) as cancelled
    from (select * from windlass.queue_tallies union all select * from windlass.queue_changes) as change
    group by queue
), running as (
    select queue, count(*) as jobs, count(*) filter (where lane = 1) as retries
    from windlass.jobs where lease_until is not null group by queue
), counted as (
    -- Not marked as due yet, although the time has come.
    select queue, -count(*) as scheduled, min(run_at) as oldest_ready
    from windlass.jobs where not due and lease_until is null and unreadable is null and run_at <= $1 group by queue
    union all
    -- Marked as due by a node whose clock is ahead of $1; and since when the first one is ready.
    select pair.queue, (
        select count(*) from windlass.jobs
        where due and lease_until is null and kind = pair.kind and queue = pair.queue and run_at > $1
    ), (
        select run_at from windlass.jobs
        where due and lease_until is null and kind = pair.kind and queue = pair.queue and run_at <= $1
        order by run_at
        limit 1
    )
    from pair
    union all
    -- Set aside as unreadable.
    select queue, count(*) filter (where run_at > $1), min(run_at) filter (where run_at <= $1)
    from windlass.jobs where unreadable is not null and lease_until is null group by queue
), adjusted as (
    select queue, sum(scheduled) as scheduled, min(oldest_ready) as oldest_ready from counted group by queue
), state as (
    select
        tally.*, coalesce(running.jobs, 0) as running, tally.future + coalesce(adjusted.scheduled, 0) as scheduled,
        tally.retries - coalesce(running.retries, 0) as retrying, adjusted.oldest_ready
    from tally left join running using (queue) left join adjusted using (queue)
)
select
    queue, scheduled::bigint, (active - running - scheduled)::bigint, retrying::bigint, running::bigint,
    succeeded::bigint, dead::bigint, cancelled::bigint, oldest_ready
from state
where active <> 0 or succeeded <> 0 or dead <> 0 or cancelled <> 0
