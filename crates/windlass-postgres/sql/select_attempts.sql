-- The ended attempts of a job but for the one that is kept with it, newest first.
select attempt, retry_count, outcome, started_at, finished_at, worker, error, detail
from windlass.attempts where job = $1 order by attempt desc limit $2
