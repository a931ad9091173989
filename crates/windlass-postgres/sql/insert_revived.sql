-- Stores revived jobs as active jobs, with what happened to them before.
with stored as (
    insert into windlass.jobs (
        id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
        concurrency_limit, payload, extra, attempt, failures, snoozes, losses_in_a_row, previous_delay, first_started_at,
        started_at, worker, last_error, failed_at, fingerprint, interventions, waiting_since
    )
    select * from unnest(
        $1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::timestamptz[], $7::timestamptz[],
        $8::boolean[], $9::timestamptz[], $10::text[], $11::timestamptz[], $12::text[], $13::integer[], $14::text[],
        $15::text[], $16::integer[], $17::integer[], $18::integer[], $19::integer[], $20::bigint[], $21::timestamptz[],
        $22::timestamptz[], $23::text[], $24::text[], $25::timestamptz[], $26::bigint[], $27::text[], $28::timestamptz[]
    )
    returning queue, lane, due
)
insert into windlass.queue_changes (queue, active, retries, future)
select queue, count(*), count(*) filter (where lane = 1), count(*) filter (where not due) from stored group by queue
