-- Dead and cancelled jobs after a cursor, newest first.  ?1 cursor
select states.id, jobs.queue, jobs.kind, states.state
from states indexed by ended_badly cross join jobs on jobs.id = states.id
where states.id < ?1 and states.state > 2
order by states.id desc
