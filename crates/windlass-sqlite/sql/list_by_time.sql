-- Finished jobs after a cursor, the one that finished last first. An index of succeeded jobs by time would slow down
-- every success, so only those among the newest ?3 jobs with a state are considered.
-- ?1 finished_at, ?2 id, ?3 limit, ?4 the same limit, or 0 without dead and cancelled jobs
select ended.id, jobs.queue, jobs.kind, ended.state, ended.finished_at
from (
    select * from (
        select id, state, finished_at from (select id, state, finished_at from states order by id desc limit ?3)
        where state = 2 and (finished_at, id) < (?1, ?2)
    )
    union all
    select * from (
        select id, state, finished_at from states indexed by ended_badly_by_time
        where (finished_at, id) < (?1, ?2) and state > 2
        order by finished_at desc, id desc limit ?4
    )
) as ended cross join jobs on jobs.id = ended.id
order by ended.finished_at desc, ended.id desc
