-- Like `select_candidates.sql`, for named jobs; also if they are parked.  $10 ids
select id, rank, run_at, concurrency_key, concurrency_limit
from windlass.jobs
where id = any ($10) and queue = $1 and lane % 2 = $2 and due and (rank, run_at, id) > ($6, $7, $8) and run_at <= $3
  and (deadline is null or deadline >= $3) and (kind = any ($4)) = $5
order by rank, run_at, id
limit $9
