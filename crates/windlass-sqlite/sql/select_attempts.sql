-- The ended attempts of a job, newest first, without the last one, which is in `states`.  ?1 id, ?2 limit
select attempt, retry_count, outcome, started_at, finished_at, worker, error, detail
from attempts where id = ?1 order by attempt desc limit ?2
