-- Jobs with a cause after a cursor, newest first.
-- ?1 cursor, ?2 fingerprint, ?6 with the last error, ?7 with the payload
select
    states.id, jobs.queue, jobs.kind, states.state, states.finished_at, jobs.created_at, states.fingerprint,
    states.failed_at, iif(?6, states.last_error, null), iif(?7, jobs.payload, null)
from states indexed by states_by_cause cross join jobs on jobs.id = states.id
where states.fingerprint = ?2 and states.id < ?1
order by states.id desc
