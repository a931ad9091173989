-- Ends attempts with success: moves their jobs to `finished`, counts them, and frees their unique keys. Leaves out jobs
-- that operators changed: for these, `core` decides what else to count.
--   $1 ids, $2 attempts, $3 results, $4 details, $5 now
with report as (
    select * from unnest($1::uuid[], $2::integer[], $3::text[], $4::text[]) as report (id, attempt, result, detail)
), done as (
    delete from windlass.jobs as job using report
    where job.id = report.id and job.attempt = report.attempt and job.interventions is null
      and coalesce(job.lease_until, '-infinity') <> '-infinity'   -- a plain `is not null` let the planner walk all leases
    returning job.*, report.result, report.detail
), moved as (
    insert into windlass.finished (
        id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, losses_in_a_row,
        previous_delay, first_started_at, started_at, worker, last_error, failed_at, state, finished_at, result, outcome,
        detail, fingerprint, waiting_since
    )
    select
        id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, 0, previous_delay,
        first_started_at, started_at, worker, last_error, failed_at, 'succeeded', $5, result, 'succeeded', detail,
        fingerprint, waiting_since
    from done
), counted as (
    insert into windlass.queue_changes (queue, active, retries, succeeded)
    select queue, -count(*), -count(*) filter (where lane = 1), count(*) from done group by queue
), recovered as (
    insert into windlass.group_changes (queue, kind, fingerprint, retrying)
    select queue, kind, fingerprint, -count(*) from done where fingerprint is not null and failures > 0
    group by queue, kind, fingerprint
), freed as (
    delete from windlass.unique_keys as held using done
    where done.unique_key is not null and held.queue = done.queue and held.key = done.unique_key and held.job = done.id
      and (done.key_until is null or done.key_until <= $5)
), kept as (
    update windlass.unique_keys as held set living = false from done
    where done.unique_key is not null and held.queue = done.queue and held.key = done.unique_key and held.job = done.id
      and done.key_until > $5
)
select id, attempt, failures, snoozes from done
