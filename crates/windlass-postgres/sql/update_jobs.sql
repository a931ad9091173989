-- Writes the state of active jobs.
update windlass.jobs as job
set queue = now.queue, lane = now.lane, rank = now.rank, run_at = now.run_at, due = now.due,
    lease_until = now.lease_until, payload = now.payload, failures = now.failures, snoozes = now.snoozes,
    losses_in_a_row = now.losses_in_a_row, previous_delay = now.previous_delay, last_error = now.last_error,
    failed_at = now.failed_at, cancel_requested = now.cancel_requested,
    settings = case when now.lease_until is not null then settings end, unreadable = null
from unnest(
    $1::uuid[], $2::text[], $3::smallint[], $4::integer[], $5::timestamptz[], $6::boolean[], $7::timestamptz[],
    $8::text[], $9::integer[], $10::integer[], $11::integer[], $12::bigint[], $13::text[], $14::timestamptz[],
    $15::boolean[]
) as now (
    id, queue, lane, rank, run_at, due, lease_until, payload, failures, snoozes, losses_in_a_row, previous_delay,
    last_error, failed_at, cancel_requested
)
where job.id = now.id
