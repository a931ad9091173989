-- Writes the state of active jobs, which this transaction has locked. With $19, also their options.
with now as (
    select * from unnest(
        $1::uuid[], $2::text[], $3::smallint[], $4::integer[], $5::timestamptz[], $6::boolean[], $7::timestamptz[],
        $8::text[], $9::integer[], $10::integer[], $11::integer[], $12::bigint[], $13::text[], $14::timestamptz[],
        $15::boolean[], $16::bigint[], $17::text[], $18::timestamptz[], $20::text[]
    ) as now (
        id, queue, lane, rank, run_at, due, lease_until, payload, failures, snoozes, losses_in_a_row, previous_delay,
        last_error, failed_at, cancel_requested, fingerprint, interventions, waiting_since, extra
    )
), before as materialized (
    select id, queue, lane, not due and lease_until is null and unreadable is null as future
    from windlass.jobs where id = any ($1)
), written as (
    update windlass.jobs as job
    set queue = now.queue, lane = now.lane, rank = now.rank, run_at = now.run_at, due = now.due,
        lease_until = now.lease_until, payload = now.payload, failures = now.failures, snoozes = now.snoozes,
        losses_in_a_row = now.losses_in_a_row, previous_delay = now.previous_delay, last_error = now.last_error,
        failed_at = now.failed_at, cancel_requested = now.cancel_requested,
        settings = case when now.lease_until is not null then settings end, unreadable = null,
        fingerprint = now.fingerprint, interventions = now.interventions, waiting_since = now.waiting_since,
        extra = case when $19 then now.extra else job.extra end
    from now where job.id = now.id
    returning job.id, job.queue, job.lane, not job.due and job.lease_until is null as future
), change as (
    select queue, -1 as active, -(lane = 1)::integer as retries, -future::integer as future from before
    where id in (select id from written)
    union all
    select queue, 1, (lane = 1)::integer, future::integer from written
)
insert into windlass.queue_changes (queue, active, retries, future)
select queue, sum(active), sum(retries), sum(future) from change
group by queue having sum(active) <> 0 or sum(retries) <> 0 or sum(future) <> 0
