-- Dead and cancelled jobs after a cursor, newest first.
-- ?1 cursor, ?6 with the last error, ?7 with the payload
select
    states.id, jobs.queue, jobs.kind, states.state, states.finished_at, jobs.created_at, states.fingerprint,
    states.failed_at, iif(?6, states.last_error, null), iif(?7, jobs.payload, null)
from states indexed by ended_badly cross join jobs on jobs.id = states.id
where states.id < ?1 and states.state > 2
order by states.id desc
