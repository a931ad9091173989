-- Moves finished jobs to another table, and counts them.
with done as (
    select * from unnest(
        $1::uuid[], $2::timestamptz[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[], $7::text[],
        $8::timestamptz[], $9::text[], $10::text[], $11::timestamptz[], $12::text[], $13::text[], $14::text[],
        $15::bigint[], $16::text[]
    ) as done (
        id, run_at, failures, snoozes, losses_in_a_row, previous_delay, last_error, failed_at, state, reason,
        finished_at, result, outcome, detail, fingerprint, interventions
    )
), deleted as (
    delete from /* from */ as job using done where job.id = done.id returning job.*
), moved as (
    insert into /* to */ (
        id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, losses_in_a_row,
        previous_delay, first_started_at, started_at, worker, last_error, failed_at, state, reason, finished_at, result,
        outcome, detail, fingerprint, interventions, waiting_since
    )
    select
        deleted.id, deleted.queue, deleted.kind, deleted.rank, done.run_at, deleted.created_at, deleted.payload, deleted.extra, deleted.attempt,
        done.failures, done.snoozes, done.losses_in_a_row, done.previous_delay, deleted.first_started_at, deleted.started_at,
        deleted.worker, done.last_error, done.failed_at, done.state, done.reason, done.finished_at, done.result,
        done.outcome, done.detail, done.fingerprint, done.interventions, deleted.waiting_since
    from deleted join done using (id)
), left_behind as (
    /* count */
)
insert into windlass.queue_changes (queue, succeeded, dead, cancelled)
select
    deleted.queue, count(*) filter (where done.state = 'succeeded'), count(*) filter (where done.state = 'dead'),
    count(*) filter (where done.state = 'cancelled')
from deleted join done using (id) group by deleted.queue
