-- Finished jobs after a cursor, the one that finished last first. An index of succeeded jobs by time would slow down
-- every success, so only those among the newest ?4 jobs with a state are considered.
-- ?1 id, ?3 finished_at, ?4 limit, ?5 the same limit, or 0 without dead and cancelled jobs, ?6 with the last error,
-- ?7 with the payload
select
    ended.id, jobs.queue, jobs.kind, ended.state, ended.finished_at, jobs.created_at, states.fingerprint,
    states.failed_at, iif(?6, states.last_error, null), iif(?7, jobs.payload, null)
from (
    select * from (
        select id, state, finished_at from (select id, state, finished_at from states order by id desc limit ?4)
        where state = 2 and (finished_at, id) < (?3, ?1)
    )
    union all
    select * from (
        select id, state, finished_at from states indexed by ended_badly_by_time
        where (finished_at, id) < (?3, ?1) and state > 2
        order by finished_at desc, id desc limit ?5
    )
) as ended cross join jobs on jobs.id = ended.id cross join states on states.id = ended.id
order by ended.finished_at desc, ended.id desc
