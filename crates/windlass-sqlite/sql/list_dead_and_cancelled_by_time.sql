-- Dead and cancelled jobs after a cursor, the one that finished last first.
-- ?1 id, ?3 finished_at, ?6 with the last error, ?7 with the payload
select
    states.id, jobs.queue, jobs.kind, states.state, states.finished_at, jobs.created_at, states.fingerprint,
    states.failed_at, iif(?6, states.last_error, null), iif(?7, jobs.payload, null)
from states indexed by ended_badly_by_time cross join jobs on jobs.id = states.id
where (states.finished_at, states.id) < (?3, ?1) and states.state > 2
order by states.finished_at desc, states.id desc
