-- The ended attempts of a job, newest first, without the one that finished the job.  $1 job, $2 limit
select attempt, retry_count, outcome, started_at, finished_at, worker, error, detail
from windlass.attempts where job = $1 order by attempt desc limit $2
