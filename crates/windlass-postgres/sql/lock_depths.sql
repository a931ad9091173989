-- The bounds of queues and how many jobs wait in them, locked against other enqueues.  $1 queues
select queue.name, queue.max_depth, (
    select count(*) from windlass.jobs as job where job.queue = queue.name and job.lease_until is null
)
from (
    select name, max_depth from windlass.queues
    where name = any ($1) and max_depth is not null
    order by name
    for update
) as queue
