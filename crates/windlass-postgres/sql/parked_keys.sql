-- The concurrency keys of parked jobs after a key, in order. Jumps from one key to the next.  $1 key, $2 limit
-- Only the index of parked jobs can give the order, so no statistics lead to another plan.
with recursive parked (key, number) as (
    (
        select concurrency_key, 1 from windlass.jobs
        where coalesce(due, false) and lane >= 2 and concurrency_key > $1
        order by concurrency_key, queue, lane, kind, concurrency_limit, rank, run_at, id
        limit 1
    )
    union all
    select next.concurrency_key, number + 1
    from parked, lateral (
        select concurrency_key from windlass.jobs
        where coalesce(due, false) and lane >= 2 and concurrency_key > parked.key
        order by concurrency_key, queue, lane, kind, concurrency_limit, rank, run_at, id
        limit 1
    ) as next
    where number < $2
)
select key from parked
