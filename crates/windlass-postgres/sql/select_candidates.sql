-- The first jobs of a lane after a position that a claim may take, unless their concurrency key is full.
--   $1 queue, $2 lane, $3 now, $4 kinds, $5 true: only these kinds, false: all other kinds, $6-$8 the position, $9 limit
select id, rank, run_at, concurrency_key, concurrency_limit
from windlass.jobs
where queue = $1 and lane = $2 and due and (rank, run_at, id) > ($6, $7, $8) and run_at <= $3
  and (deadline is null or deadline >= $3) and (kind = any ($4)) = $5
order by rank, run_at, id
limit $9
