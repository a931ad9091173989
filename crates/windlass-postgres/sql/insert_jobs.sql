-- Stores new jobs, but for those whose id is taken, and none at all where a queue has a bound on its depth.
with asked as (
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::timestamptz[], $7::timestamptz[],
        $8::boolean[], $9::timestamptz[], $10::text[], $11::timestamptz[], $12::text[], $13::integer[], $14::text[],
        $15::text[]
    ) as asked (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra
    )
), bounded as (
    select exists (select from windlass.queues where max_depth is not null and name = any ($2)) as is_so
), stored as (
    insert into windlass.jobs (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra
    )
    select asked.* from asked, bounded
    where not bounded.is_so
    on conflict (id) do nothing
    returning id
)
select bounded.is_so, stored.id from bounded left join stored on true
