-- The first due job of a lane before the watermark.  $1 queue, $2 lane, $3-$5 the watermark, $6 kinds,
--   $7 true: only these kinds, false: all other kinds
select rank, run_at, id
from windlass.jobs
where queue = $1 and lane = $2 and due and (rank, run_at, id) < ($3, $4, $5) and (kind = any ($6)) = $7
order by rank, run_at, id
limit 1
