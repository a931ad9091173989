-- The first jobs of a lane after a position that a claim may take.
--   $1 queue, $2 lane, $3 now, $4 kinds, $5 ids, $6-$8 the position, $9 limit, $10 whether to include jobs with a
--   concurrency key, $11 keys of running jobs and $12 how many run with each, $13 true: only these kinds, false: all other kinds
select id, rank, run_at, concurrency_key, concurrency_limit
from windlass.jobs
where queue = $1 and lane = $2 and due and (rank, run_at, id) > ($6, $7, $8) and run_at <= $3
  and (deadline is null or deadline >= $3)
  and (kind = any ($4)) = $13 and ($5::uuid[] is null or id = any ($5))
  and (concurrency_key is null or $10 and not exists (
      select from unnest($11::text[], $12::integer[]) as running (key, count)
      where running.key = concurrency_key and running.count >= concurrency_limit
  ))
order by rank, run_at, id
limit $9
