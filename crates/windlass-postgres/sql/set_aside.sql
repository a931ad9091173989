-- Sets unreadable jobs aside: takes them out of the indexes of claims and sweeps.  $1 ids, $2 reasons
with before as materialized (
    select id, queue, not due and lease_until is null and unreadable is null as future
    from windlass.jobs where id = any ($1) order by id for update
), changed as (
    update windlass.jobs as job
    set due = false, lane = lane % 2, unreadable = given.reason
    from unnest($1::uuid[], $2::text[]) as given (id, reason), before
    where job.id = given.id and before.id = given.id
)
insert into windlass.queue_changes (queue, future) select queue, -count(*) from before where future group by queue
