-- Stores jobs whose ids were checked before. Returns the ids of the stored jobs.
with stored as (
    insert into windlass.jobs (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra
    )
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::timestamptz[], $7::timestamptz[],
        $8::boolean[], $9::timestamptz[], $10::text[], $11::timestamptz[], $12::text[], $13::integer[], $14::text[],
        $15::text[]
    )
    on conflict (id) do nothing
    returning id, queue, lane, due
), counted as (
    insert into windlass.queue_changes (queue, active, retries, future)
    select queue, count(*), count(*) filter (where lane = 1), count(*) filter (where not due) from stored group by queue
)
select id from stored
