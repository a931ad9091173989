-- Stores new jobs, except those whose id an active job has. Stores nothing if one of the queues has a max_depth.
with given as (
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::timestamptz[], $7::timestamptz[],
        $8::boolean[], $9::timestamptz[], $10::text[], $11::timestamptz[], $12::text[], $13::integer[], $14::text[],
        $15::text[]
    ) as given (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra
    )
), bounded as (
    select exists (select from windlass.queues where max_depth is not null and name = any ($2)) as has_max_depth
), stored as (
    insert into windlass.jobs (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra
    )
    select given.* from given, bounded
    where not bounded.has_max_depth
    on conflict (id) do nothing
    returning id, queue, lane, due
), counted as (
    insert into windlass.queue_changes (queue, active, retries, future)
    select queue, count(*), count(*) filter (where lane = 1), count(*) filter (where not due) from stored group by queue
)
select bounded.has_max_depth, stored.id from bounded left join stored on true
