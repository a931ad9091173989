-- The number of scheduled, ready, retrying and running jobs of each queue, and the oldest ready `run_at`.  $1 now
select
    queue,
    count(*) filter (where lease_until is null and run_at > $1),
    count(*) filter (where lease_until is null and run_at <= $1),
    count(*) filter (where lease_until is null and lane = 1),
    count(*) filter (where lease_until is not null),
    min(run_at) filter (where lease_until is null and run_at <= $1)
from windlass.jobs
group by queue
