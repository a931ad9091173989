-- The frequent verbs as functions. A connection plans a function's statements once and keeps the plans, also behind a
-- transaction pooler, where prepared statements are not possible. The name of a function ends with its version: a later
-- migration adds new versions and leaves the old ones to nodes that still run.
--
-- Every function has the same settings: plans that do not depend on values, no scan of a whole table because of old or
-- missing statistics, and no JIT compiler because of the cost penalty for such scans.

-- What a claim returns: the columns of a running job, and after them what the other parts need.
create type windlass.claimed_v1 as (
    id uuid, queue text, kind text, rank integer, run_at timestamptz, created_at timestamptz, payload text, extra text,
    attempt integer, failures integer, snoozes integer, losses_in_a_row integer, previous_delay bigint,
    first_started_at timestamptz, started_at timestamptz, worker text, last_error text, failed_at timestamptz,
    fingerprint bigint, interventions text, waiting_since timestamptz, lease_until timestamptz, settings integer,
    cancel_requested boolean,
    part      smallint,      -- 0 a claimed job, 1 the first job of a queue and lane that became due, 2 the last row
    lane      smallint,      -- of a claimed or due job
    repeated  boolean,       -- the claim was made before
    bounded   boolean,       -- the queue has limits
    keyed     boolean,       -- due jobs of the queue have concurrency keys
    both_wait boolean,       -- fresh jobs and retries both waited
    exhausted boolean,       -- no job that the claim could take is left
    next_at   timestamptz    -- when the next job of any queue becomes due
);

-- Claims jobs of a queue: marks jobs of all queues as due, then takes up to `retries_first` retries, then fresh jobs,
-- then more retries. Takes nothing if the claim was made before, or if limits or concurrency keys must be counted first.
-- The attempt counter stops at its maximum instead of overflowing; the driver parks such a job as unreadable.
create function windlass.claim_v1(
    claim_id uuid, claim_lock bigint, claim_queue text, kinds text[], includes_kinds boolean, now_at timestamptz,
    lease timestamptz, claim_settings integer, claim_worker text,
    fresh_rank integer, fresh_at timestamptz, fresh_id uuid,
    retry_rank integer, retry_at timestamptz, retry_id uuid,
    jobs_max integer, retries_first integer, fresh_max integer, retries_max integer, promote_max integer
) returns setof windlass.claimed_v1
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    answer      windlass.claimed_v1;
    promoted    record;
    step        integer;
    step_lane   smallint;
    wanted      integer;
    got         integer;
    fresh_waits boolean;
    retry_waits boolean;
    more        boolean := false;
    fresh       integer := 0;
    retries     integer := 0;
begin
    perform pg_advisory_xact_lock(claim_lock);
    for look in 1..2 loop
        select run_at into answer.next_at from windlass.jobs
        where not due and lease_until is null and unreadable is null
        order by run_at, id limit 1;
        exit when look = 2 or answer.next_at is null or answer.next_at > now_at;
        for promoted in
            with promoted as (
                update windlass.jobs
                set due = true
                where id = any (array(
                    select id from windlass.jobs
                    where not due and lease_until is null and unreadable is null and run_at <= now_at
                    order by run_at, id
                    limit promote_max
                    for update skip locked
                ))
                returning queue, lane, rank, run_at, id
            ), counted as (
                insert into windlass.queue_changes (queue, future) select queue, -count(*) from promoted group by queue
            )
            select distinct on (queue, lane) queue, lane, rank, run_at, id from promoted
            order by queue, lane, rank, run_at, id
        loop
            answer.part := 1;
            answer.queue := promoted.queue;
            answer.lane := promoted.lane;
            answer.rank := promoted.rank;
            answer.run_at := promoted.run_at;
            answer.id := promoted.id;
            return next answer;
            if promoted.queue <> claim_queue then
                continue;
            end if;
            -- The claim must not start after a job that became due just now.
            if promoted.lane = 0 and (promoted.rank, promoted.run_at, promoted.id) < (fresh_rank, fresh_at, fresh_id) then
                fresh_rank := promoted.rank;
                fresh_at := promoted.run_at;
                fresh_id := promoted.id;
            elsif promoted.lane = 1 and (promoted.rank, promoted.run_at, promoted.id) < (retry_rank, retry_at, retry_id) then
                retry_rank := promoted.rank;
                retry_at := promoted.run_at;
                retry_id := promoted.id;
            end if;
        end loop;
    end loop;

    select
        exists (select from windlass.claims where id = claim_id),
        exists (select from windlass.queues where name = claim_queue and queues.bounded),
        exists (select from windlass.jobs where queue = claim_queue and due and concurrency_key is not null),
        exists (
            select from windlass.jobs
            where queue = claim_queue and lane = 0 and due and (rank, run_at, id) >= (fresh_rank, fresh_at, fresh_id)
              and run_at <= now_at and (deadline is null or deadline >= now_at) and (kind = any (kinds)) = includes_kinds
        ),
        exists (
            select from windlass.jobs
            where queue = claim_queue and lane = 1 and due and (rank, run_at, id) >= (retry_rank, retry_at, retry_id)
              and run_at <= now_at and (deadline is null or deadline >= now_at) and (kind = any (kinds)) = includes_kinds
        )
    into answer.repeated, answer.bounded, answer.keyed, fresh_waits, retry_waits;
    answer.both_wait := fresh_waits and retry_waits;

    if not (answer.repeated or answer.bounded or answer.keyed) then
        for step in 1..3 loop
            if step = 2 then
                step_lane := 0;
                wanted := case when fresh_waits then least(jobs_max - retries, fresh_max) else 0 end;
            else
                step_lane := 1;
                wanted := case
                    when not retry_waits then 0
                    when step = 1 then least(retries_first, retries_max, jobs_max)
                    else least(jobs_max - retries - fresh, retries_max - retries)
                end;
            end if;
            -- Where nothing is taken although jobs wait, some are left.
            more := more or wanted <= 0 and (step = 2 and fresh_waits or step = 3 and retry_waits);
            continue when wanted <= 0;
            return query
            with taken as (
                update windlass.jobs
                set due = false, lease_until = lease, settings = claim_settings, worker = claim_worker,
                    attempt = attempt + (attempt < 2147483647)::integer, started_at = now_at,
                    first_started_at = coalesce(first_started_at, now_at), cancel_requested = false
                where id = any (array(
                    select id from windlass.jobs
                    where queue = claim_queue and lane = step_lane and due
                      and (rank, run_at, id) >= (
                          case when step_lane = 0 then fresh_rank else retry_rank end,
                          case when step_lane = 0 then fresh_at else retry_at end,
                          case when step_lane = 0 then fresh_id else retry_id end
                      )
                      and run_at <= now_at and (deadline is null or deadline >= now_at) and concurrency_key is null
                      and (kind = any (kinds)) = includes_kinds
                    order by rank, run_at, id
                    limit wanted
                    for update skip locked
                ))
                returning *
            ), recorded as (
                insert into windlass.claims as claim (id, at, jobs, attempts)
                select claim_id, now_at, array_agg(id), array_agg(attempt) from taken having count(*) > 0
                on conflict (id) do update
                set jobs = claim.jobs || excluded.jobs, attempts = claim.attempts || excluded.attempts
            )
            select
                id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, losses_in_a_row,
                previous_delay, first_started_at, started_at, worker, last_error, failed_at, fingerprint, interventions,
                waiting_since, lease_until, settings, cancel_requested,
                0::smallint, lane, null::boolean, null::boolean, null::boolean, null::boolean, null::boolean,
                null::timestamptz
            from taken;
            get diagnostics got = row_count;
            if step_lane = 0 then
                fresh := got;
            else
                retries := retries + got;
            end if;
            -- A lane that gave less than was asked for has no more. The first retries are followed by others in step 3.
            if got < wanted then
                retry_waits := retry_waits and step_lane = 0;
            else
                more := more or step > 1;
            end if;
        end loop;
        answer.exhausted := not more;
    end if;
    answer.part := 2;
    return next answer;
end
$$;

-- Stores new jobs, except those whose id an active job has. Stores nothing if one of the queues has a max_depth. Fails
-- (division by zero) if an id belongs to a finished job: that is checked after the insert, in a statement that sees jobs
-- which finished while the insert waited for them.
create function windlass.enqueue_v1(
    ids uuid[], queue_names text[], kinds text[], lanes smallint[], ranks integer[], run_ats timestamptz[],
    created_ats timestamptz[], dues boolean[], deadlines timestamptz[], unique_keys text[], key_ends timestamptz[],
    concurrency_keys text[], concurrency_limits integer[], payloads text[], extras text[]
) returns table (has_max_depth boolean, stored_id uuid)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    if exists (select from windlass.queues where max_depth is not null and name = any (queue_names)) then
        return query select true, null::uuid;
        return;
    end if;
    return query
    with stored as (
        insert into windlass.jobs (
            id, queue, kind, lane, rank, run_at, created_at, due, deadline, unique_key, key_until, concurrency_key,
            concurrency_limit, payload, extra
        )
        select * from unnest(
            ids, queue_names, kinds, lanes, ranks, run_ats, created_ats, dues, deadlines, unique_keys, key_ends,
            concurrency_keys, concurrency_limits, payloads, extras
        )
        on conflict (id) do nothing
        returning id, queue, lane, due
    ), counted as (
        insert into windlass.queue_changes (queue, active, retries, future)
        select queue, count(*), count(*) filter (where lane = 1), count(*) filter (where not due)
        from stored group by queue
    )
    select false, stored.id from stored;
    perform 1 / (not exists (
        select from windlass.finished where id = any (ids) union all select from windlass.dead where id = any (ids)
    ))::integer;
end
$$;

-- Ends attempts with success: moves their jobs to `finished`, counts them, and frees their unique keys. Leaves out jobs
-- that operators changed: for these, `core` decides what else to count.
create function windlass.succeed_v1(
    ids uuid[], attempts integer[], results text[], details text[], now_at timestamptz
) returns table (done_id uuid, done_attempt integer, done_failures integer, done_snoozes integer)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    with report as (
        select * from unnest(ids, attempts, results, details) as report (id, attempt, result, detail)
    ), done as (
        delete from windlass.jobs as job using report
        where job.id = report.id and job.attempt = report.attempt and job.interventions is null
          and coalesce(job.lease_until, '-infinity') <> '-infinity'   -- a plain `is not null` let the planner walk all leases
        returning job.*, report.result, report.detail
    ), moved as (
        insert into windlass.finished (
            id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, losses_in_a_row,
            previous_delay, first_started_at, started_at, worker, last_error, failed_at, state, finished_at, result,
            outcome, detail, fingerprint, waiting_since
        )
        select
            id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes, 0, previous_delay,
            first_started_at, started_at, worker, last_error, failed_at, 'succeeded', now_at, result, 'succeeded',
            detail, fingerprint, waiting_since
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
        where done.unique_key is not null and held.queue = done.queue and held.key = done.unique_key
          and held.job = done.id and (done.key_until is null or done.key_until <= now_at)
    ), kept as (
        update windlass.unique_keys as held set living = false from done
        where done.unique_key is not null and held.queue = done.queue and held.key = done.unique_key
          and held.job = done.id and done.key_until > now_at
    )
    select id, attempt, failures, snoozes from done;
end
$$;

-- Extends leases.
create function windlass.renew_v1(ids uuid[], attempts integer[], until timestamptz)
returns table (renewed_id uuid, renewed_attempt integer, has_cancel_request boolean)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    update windlass.jobs as job
    set lease_until = until
    from unnest(ids, attempts) as lease (id, attempt)
    where job.id = lease.id and job.attempt = lease.attempt
      and coalesce(job.lease_until, '-infinity') <> '-infinity'   -- a plain `is not null` let the planner walk all leases
    returning job.id, job.attempt, job.cancel_requested;
end
$$;

-- Locks running jobs, so that `core` can decide what their reports lead to.
create function windlass.lock_running_v1(ids uuid[]) returns setof windlass.jobs
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select * from windlass.jobs
    where id = any (ids) and coalesce(lease_until, '-infinity') <> '-infinity'
    order by id
    for update;
end
$$;

-- Writes the state of active jobs, which the transaction has locked; their options only `with_options`.
create function windlass.update_jobs_v1(
    ids uuid[], queue_names text[], lanes smallint[], ranks integer[], run_ats timestamptz[], dues boolean[],
    leases timestamptz[], payloads text[], failure_counts integer[], snooze_counts integer[], loss_counts
    integer[], delays bigint[], errors text[], failed_ats timestamptz[], cancels boolean[], causes bigint[],
    intervention_lists text[], waiting_times timestamptz[], with_options boolean, extras text[]
) returns void
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    with now as (
        select * from unnest(
            ids, queue_names, lanes, ranks, run_ats, dues, leases,
            payloads, failure_counts, snooze_counts, loss_counts, delays, errors, failed_ats,
            cancels, causes, intervention_lists, waiting_times, extras
        ) as now (
            id, queue, lane, rank, run_at, due, lease_until, payload, failures, snoozes, losses_in_a_row, previous_delay,
            last_error, failed_at, cancel_requested, fingerprint, interventions, waiting_since, extra
        )
    ), before as materialized (
        select id, queue, lane, not due and lease_until is null and unreadable is null as future
        from windlass.jobs where id = any (ids)
    ), written as (
        update windlass.jobs as job
        set queue = now.queue, lane = now.lane, rank = now.rank, run_at = now.run_at, due = now.due,
            lease_until = now.lease_until, payload = now.payload, failures = now.failures, snoozes = now.snoozes,
            losses_in_a_row = now.losses_in_a_row, previous_delay = now.previous_delay, last_error = now.last_error,
            failed_at = now.failed_at, cancel_requested = now.cancel_requested,
            settings = case when now.lease_until is not null then settings end, unreadable = null,
            fingerprint = now.fingerprint, interventions = now.interventions, waiting_since = now.waiting_since,
            extra = case when with_options then now.extra else job.extra end
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
    group by queue having sum(active) <> 0 or sum(retries) <> 0 or sum(future) <> 0;
end
$$;

-- Adds ended attempts to the history.
create function windlass.insert_attempts_v1(
    ids uuid[], attempts integer[], retry_counts integer[], outcomes text[], started_ats timestamptz[],
    finished_ats timestamptz[], workers text[], errors text[], details text[]
) returns void
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    insert into windlass.attempts (job, attempt, retry_count, outcome, started_at, finished_at, worker, error, detail)
    select * from unnest(
        ids, attempts, retry_counts, outcomes, started_ats, finished_ats, workers, errors, details
    )
    on conflict do nothing;
end
$$;

-- Appends changes of failure groups.
create function windlass.insert_group_changes_v1(
    queue_names text[], kinds text[], causes bigint[], dead_changes bigint[], retrying_changes bigint[],
    failure_changes bigint[], hours bigint[], seen_ats timestamptz[], samples uuid[]
) returns void
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    insert into windlass.group_changes (
        queue, kind, fingerprint, dead, retrying, failures, hour, last_seen_at, sample
    )
    select * from unnest(
        queue_names, kinds, causes, dead_changes, retrying_changes, failure_changes, hours, seen_ats, samples
    );
end
$$;
