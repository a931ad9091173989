-- The waiting and running jobs among the newest ?2 occurrences of a schedule.  ?1 schedule
select newest.job
from (select at, job from occurrences where schedule = ?1 order by at desc limit ?2) as newest
    left join states on states.id = newest.job
where newest.job is not null and coalesce(states.state, 0) < 2   -- a job that was never claimed has no state
order by newest.at desc
