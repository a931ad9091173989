-- Jobs with a cause after a cursor, newest first.  ?1 cursor, ?2 fingerprint
select states.id, jobs.queue, jobs.kind, states.state
from states indexed by states_by_cause cross join jobs on jobs.id = states.id
where states.fingerprint = ?2 and states.id < ?1
order by states.id desc
