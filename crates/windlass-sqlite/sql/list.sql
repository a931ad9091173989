-- The ids behind a cursor, newest first.  ?1 cursor, ?2 queue, ?3 kind, ?4 and ?5 the numbers of states
select jobs.id
from jobs left join states on states.id = jobs.id
where jobs.id < ?1
  and (?2 is null or jobs.queue = ?2)
  and (?3 is null or jobs.kind = ?3)
  and coalesce(states.state, 0) between ?4 and ?5
order by jobs.id desc
