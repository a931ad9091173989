-- The ended attempts of a job but for the one in `states`, newest first.
select attempt, retry_count, outcome, started_at, finished_at, worker, error, detail
from attempts where id = ?1 order by attempt desc limit ?2
