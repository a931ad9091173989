-- The active jobs among the newest $2 occurrences of each schedule, in no order.  $1 schedules
select /* columns */
from unnest($1::uuid[]) as wanted (schedule)
    cross join lateral (
        select fired.job from windlass.occurrences as fired
        where fired.schedule = wanted.schedule
        order by fired.at desc limit $2
    ) as newest
    -- The limit makes the planner look up each job. It would otherwise join all active jobs.
    cross join lateral (select * from windlass.jobs where jobs.id = newest.job limit 1) as job
