-- Marks jobs as due whose time has come.  $1 now, $2 limit
with promoted as (
    update windlass.jobs
    set due = true
    where id = any (array(
        select id from windlass.jobs
        where not due and lease_until is null and unreadable is null and run_at <= $1
        order by run_at, id
        limit $2
        for update skip locked
    ))
    returning queue, lane, rank, run_at, id
), counted as (
    insert into windlass.queue_changes (queue, future) select queue, -count(*) from promoted group by queue
)
select * from promoted
