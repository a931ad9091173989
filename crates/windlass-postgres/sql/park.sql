-- Parks unreadable jobs: takes them out of the indexes of claims and sweeps.  $1 ids, $2 reasons
with before as materialized (
    select id, queue, not due and lease_until is null and unreadable is null as future
    from windlass.jobs where id = any ($1) order by id for update
), parked as (
    update windlass.jobs as job
    set due = false, lane = lane % 2, unreadable = parked.reason
    from unnest($1::uuid[], $2::text[]) as parked (id, reason), before
    where job.id = parked.id and before.id = parked.id
)
insert into windlass.queue_changes (queue, future) select queue, -count(*) from before where future group by queue
