-- Jobs after a cursor, newest first, with the number of their state.  ?1 cursor
select jobs.id, jobs.queue, jobs.kind, coalesce(states.state, 0)
from jobs left join states on states.id = jobs.id
where jobs.id < ?1
order by jobs.id desc
