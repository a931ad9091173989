-- Dead and cancelled jobs after a cursor, the one that finished last first.  ?1 finished_at, ?2 id
select states.id, jobs.queue, jobs.kind, states.state, states.finished_at
from states indexed by ended_badly_by_time cross join jobs on jobs.id = states.id
where (states.finished_at, states.id) < (?1, ?2) and states.state > 2
order by states.finished_at desc, states.id desc
