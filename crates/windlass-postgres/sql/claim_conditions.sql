-- What decides how a claim proceeds: whether it was made before, the queue has limits, due jobs have concurrency keys,
-- fresh jobs wait, retries wait.
--   $1 queue, $2 claim, $3 now, $4 kinds, $5-$7 start of fresh jobs, $8-$10 start of retries,
--   $11 true: only these kinds, false: all other kinds
select
    exists (select from windlass.claims where id = $2),
    exists (select from windlass.queues where name = $1 and bounded),
    exists (select from windlass.jobs where queue = $1 and due and concurrency_key is not null),
    exists (
        select from windlass.jobs
        where queue = $1 and lane = 0 and due and (rank, run_at, id) >= ($5, $6, $7) and run_at <= $3
          and (deadline is null or deadline >= $3) and (kind = any ($4)) = $11
    ),
    exists (
        select from windlass.jobs
        where queue = $1 and lane = 1 and due and (rank, run_at, id) >= ($8, $9, $10) and run_at <= $3
          and (deadline is null or deadline >= $3) and (kind = any ($4)) = $11
    )
