-- Concurrency keys: a lock for each key, and parked jobs.
--
-- A claim that meets a due job with a concurrency key locks the key, counts the running jobs with it, and starts the
-- job or parks it. A parked job stays due, but moves to a lane that no claim looks at: 2 instead of 0 (fresh), 3
-- instead of 1 (retry). When attempts end, or when a due job with a key leaves its queue, the same transaction unparks
-- jobs.
--
-- A job must not be parked while the last attempt that fills its key ends: the transaction that ends it would not see
-- the parked job. So `park_v1` locks the running jobs that it counts. Their end then waits, and sees the parked job.
--
-- Lock order: a claim locks due jobs first and keys after that, both without waiting. One that takes nothing because
-- other claims hold its keys is repeated; its first lock of keys then waits, in the order of their slots, while it has
-- no other keys. A transaction that ends attempts locks running jobs and no keys.

-- A key is locked through the row with its hash. Rows of keys themselves would have to be created and removed.
create table windlass.key_locks (slot integer not null primary key);
insert into windlass.key_locks select generate_series(0, 65535);

-- A plain `lease_until is not null` would let the planner walk all leases to count those of a key.
create index running_by_key on windlass.jobs (concurrency_key)
where concurrency_key is not null and coalesce(lease_until, '-infinity') <> '-infinity';
drop index windlass.keyed_running;

-- The same for a plain `due`, which would let it walk all due jobs.
create index parked_by_key
on windlass.jobs (concurrency_key, queue, lane, kind, concurrency_limit, rank, run_at, id)
where coalesce(due, false) and lane >= 2;

-- Locks keys, and returns the number of running jobs of each locked key. Without `wait`, leaves out keys that another
-- transaction has locked. Sweeps skip unreadable jobs, so these count only until their lease expires.
create function windlass.lock_keys_v1(keys text[], now_at timestamptz, wait boolean)
returns table (key_number integer, running integer)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    numbers integer[];
    locked  text[];
begin
    if wait then
        perform slot from windlass.key_locks
        where slot = any (array(select hashtext(key) & 65535 from unnest(keys) as wanted (key)))
        order by slot for update;
    end if;
    select array_agg(number), array_agg(key) into numbers, locked
    from (
        select number, key
        from unnest(keys) with ordinality as wanted (key, number), windlass.key_locks
        where slot = hashtext(key) & 65535
        for update of key_locks skip locked
    ) as found;
    -- A later statement, which sees what the earlier holders of the locks have committed.
    return query
    select number, (
        select count(*)::integer from windlass.jobs
        where concurrency_key = key and coalesce(lease_until, '-infinity') <> '-infinity'
          and (unreadable is null or lease_until > now_at)
    )
    from unnest(numbers, locked) as held (number, key);
end
$$;

-- Parks those of these jobs whose key is full. Returns how many.
create function windlass.park_v1(ids uuid[], now_at timestamptz) returns bigint
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    parked bigint;
begin
    with waiting as materialized (
        select id, concurrency_key, concurrency_limit from windlass.jobs
        where id = any (ids) and coalesce(due, false) and lane < 2
        for update skip locked
    ), key as materialized (
        select concurrency_key as key, max(concurrency_limit) as limit_max from waiting group by concurrency_key
    ), held as materialized (
        select key, (
            select count(*) from (
                select from windlass.jobs
                where concurrency_key = key and coalesce(lease_until, '-infinity') <> '-infinity'
                  and (unreadable is null or lease_until > now_at)
                limit limit_max
                for share skip locked
            ) as running
        ) as running
        from key
    )
    update windlass.jobs set lane = lane + 2
    where id = any (array(
        select id from waiting join held on key = concurrency_key where running >= concurrency_limit
    ));
    get diagnostics parked = row_count;
    return parked;
end
$$;

-- Unparks as many jobs of these keys as may start now, those of each queue, lane, kind and limit: the others of a key
-- may have no worker. Returns them.
create function windlass.unpark_v1(keys text[], now_at timestamptz)
returns table (job_queue text, job_lane smallint, job_rank integer, job_run_at timestamptz, job_id uuid)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    with recursive parked (key, queue, lane, kind, key_limit) as (
        select first.*
        from unnest(keys) as given (key), lateral (
            select concurrency_key, queue, lane, kind, concurrency_limit from windlass.jobs
            where coalesce(due, false) and lane >= 2 and concurrency_key = given.key
            order by concurrency_key, queue, lane, kind, concurrency_limit
            limit 1
        ) as first
        union all
        select next.*
        from parked, lateral (
            select concurrency_key, queue, lane, kind, concurrency_limit from windlass.jobs as job
            where coalesce(due, false) and job.lane >= 2 and concurrency_key = parked.key
              and (job.queue, job.lane, job.kind, concurrency_limit)
                  > (parked.queue, parked.lane, parked.kind, parked.key_limit)
            order by concurrency_key, queue, lane, kind, concurrency_limit
            limit 1
        ) as next
    ), counted as materialized (
        select parked.*, least(1000, key_limit - (
            select count(*) from windlass.jobs
            where concurrency_key = key and coalesce(lease_until, '-infinity') <> '-infinity'
              and (unreadable is null or lease_until > now_at)
        )) as free
        from parked
    )
    update windlass.jobs
    set lane = lane - 2
    where id = any (array(
        select fitting.id
        from counted, lateral (
            select id from windlass.jobs as job
            where coalesce(due, false) and job.lane >= 2 and concurrency_key = counted.key and job.queue = counted.queue
              and job.lane = counted.lane and job.kind = counted.kind and concurrency_limit = counted.key_limit
              and (deadline is null or deadline >= now_at)
            order by rank, run_at, id
            limit counted.free
            for update skip locked
        ) as fitting
        where counted.free > 0
    ))
    returning jobs.queue, jobs.lane, jobs.rank, jobs.run_at, jobs.id;
end
$$;

-- Unparks jobs of keys that are free although a due job with the key has not started: its deadline has passed, and no
-- sweep has ended it yet.
create function windlass.unpark_overdue_v1(now_at timestamptz)
returns table (job_queue text, job_lane smallint, job_rank integer, job_run_at timestamptz, job_id uuid)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    keys text[] := array(
        select distinct concurrency_key
        from (
            select concurrency_key, due, lane from windlass.jobs
            where deadline is not null and lease_until is null and unreadable is null and deadline < now_at
            order by deadline, id
            limit 100
        ) as overdue
        where due and lane < 2 and concurrency_key is not null
    );
begin
    if keys <> '{}' then
        return query select * from windlass.unpark_v1(keys, now_at);
    end if;
end
$$;

-- Claims jobs like `claim_v1`, and also those with concurrency keys. Parks jobs whose key is full. The last row is part
-- 3 instead of 2 if it left jobs because other transactions used their keys. It takes jobs after the given positions.
create function windlass.claim_keyed_v1(
    claim_id uuid, claim_lock bigint, claim_queue text, kinds text[], includes_kinds boolean, now_at timestamptz,
    lease timestamptz, claim_settings integer, claim_worker text,
    fresh_rank integer, fresh_at timestamptz, fresh_id uuid,
    retry_rank integer, retry_at timestamptz, retry_id uuid,
    jobs_max integer, retries_first integer, fresh_max integer, retries_max integer, promote_max integer, wait boolean
) returns setof windlass.claimed_v1
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    answer      windlass.claimed_v1;
    ending      windlass.claimed_v1;
    unparked    record;
    counted     record;
    step_lane   smallint;
    wanted      integer;            -- how many jobs this step takes,
    got         integer;            -- and how many it has
    batch       integer;
    after_rank  integer;
    after_at    timestamptz;
    after_id    uuid;
    ids         uuid[];             -- the candidates in claim order,
    key_numbers integer[];          -- the position of the key of each in `keys`; 0 if it has none
    key_limits  integer[];
    keys        text[];
    running     integer[];          -- by key; null if another transaction holds the key
    key_number  integer;
    chosen      uuid[];
    full_ids    uuid[];             -- candidates whose key is full
    found_ready boolean;
    fresh_ready boolean := false;
    retry_ready boolean := false;
    more        boolean := false;
    is_busy     boolean := false;
    fresh       integer := 0;
    retries     integer := 0;
begin
    for unparked in select * from windlass.unpark_overdue_v1(now_at) loop
        answer.part := 1;
        answer.queue := unparked.job_queue;
        answer.lane := unparked.job_lane;
        answer.rank := unparked.job_rank;
        answer.run_at := unparked.job_run_at;
        answer.id := unparked.job_id;
        return next answer;
        -- These may be anywhere, so the claim starts at the front.
        fresh_rank := -2147483648;
        retry_rank := -2147483648;
    end loop;
    -- Promotes due jobs and reads the conditions of the claim, but takes nothing.
    for answer in
        select * from windlass.claim_v1(
            claim_id, claim_lock, claim_queue, kinds, includes_kinds, now_at, lease, claim_settings, claim_worker,
            fresh_rank, fresh_at, fresh_id, retry_rank, retry_at, retry_id, 0, 0, 0, 0, promote_max
        )
    loop
        if answer.part = 2 then
            ending := answer;
            continue;
        end if;
        return next answer;
        -- The claim must not start after a job that became due just now.
        if answer.queue = claim_queue and answer.lane = 0
            and (answer.rank, answer.run_at, answer.id) <= (fresh_rank, fresh_at, fresh_id)
        then
            fresh_rank := answer.rank;
            fresh_at := answer.run_at;
            fresh_id := '00000000-0000-0000-0000-000000000000';
        elsif answer.queue = claim_queue and answer.lane = 1
            and (answer.rank, answer.run_at, answer.id) <= (retry_rank, retry_at, retry_id)
        then
            retry_rank := answer.rank;
            retry_at := answer.run_at;
            retry_id := '00000000-0000-0000-0000-000000000000';
        end if;
    end loop;

    for step in 1..3 loop
        exit when ending.repeated or ending.bounded;
        if step = 2 then
            step_lane := 0;
            wanted := least(jobs_max - retries, fresh_max);
            after_rank := fresh_rank;
            after_at := fresh_at;
            after_id := fresh_id;
        else
            step_lane := 1;
            wanted := case
                when step = 1 then least(retries_first, retries_max, jobs_max)
                else least(jobs_max - retries - fresh, retries_max - retries)
            end;
            after_rank := retry_rank;
            after_at := retry_at;
            after_id := retry_id;
        end if;
        -- Where nothing is wanted, one candidate shows whether a job could start.
        continue when wanted <= 0 and step = 1;
        wanted := greatest(wanted, 0);
        got := 0;
        batch := greatest(wanted, 1);
        found_ready := false;
        loop
            with found as materialized (
                select id, rank, run_at, concurrency_key, concurrency_limit from windlass.jobs
                where queue = claim_queue and lane = step_lane and due
                  and (rank, run_at, id) > (after_rank, after_at, after_id)
                  and run_at <= now_at and (deadline is null or deadline >= now_at)
                  and (kind = any (kinds)) = includes_kinds
                order by rank, run_at, id
                limit batch
                for update skip locked
            ), numbered as (
                select
                    found.*, row_number() over (order by rank, run_at, id) as number,
                    case
                        when concurrency_key is null then 0 else dense_rank() over (order by concurrency_key)
                    end as key_number
                from found
            )
            select
                array_agg(numbered.id order by number), array_agg(numbered.key_number::integer order by number),
                array_agg(coalesce(concurrency_limit, 0) order by number),
                array_agg(distinct concurrency_key) filter (where concurrency_key is not null)
            into ids, key_numbers, key_limits, keys
            from numbered;
            exit when ids is null;
            if keys is not null then
                running := array_fill(null::integer, array[cardinality(keys)]);
                for counted in select * from windlass.lock_keys_v1(keys, now_at, wait) loop
                    running[counted.key_number] := counted.running;
                end loop;
                wait := false;
            end if;
            chosen := '{}';
            full_ids := '{}';
            for position in 1..cardinality(ids) loop
                key_number := key_numbers[position];
                if key_number > 0 then
                    if running[key_number] is null then
                        is_busy := true;
                        continue;
                    elsif running[key_number] >= key_limits[position] then
                        full_ids := full_ids || ids[position];
                        continue;
                    end if;
                end if;
                found_ready := true;
                if got = wanted then
                    more := more or step > 1;
                    exit;
                end if;
                got := got + 1;
                chosen := chosen || ids[position];
                if key_number > 0 then
                    running[key_number] := running[key_number] + 1;
                end if;
            end loop;
            if cardinality(chosen) > 0 then
                return query
                with taken as (
                    update windlass.jobs
                    set due = false, lease_until = lease, settings = claim_settings, worker = claim_worker,
                        attempt = attempt + (attempt < 2147483647)::integer, started_at = now_at,
                        first_started_at = coalesce(first_started_at, now_at), cancel_requested = false
                    where id = any (chosen)
                    returning *
                ), recorded as (
                    insert into windlass.claims as claim (id, at, jobs, attempts)
                    select claim_id, now_at, array_agg(id), array_agg(attempt) from taken
                    on conflict (id) do update
                    set jobs = claim.jobs || excluded.jobs, attempts = claim.attempts || excluded.attempts
                )
                select
                    id, queue, kind, rank, run_at, created_at, payload, extra, attempt, failures, snoozes,
                    losses_in_a_row, previous_delay, first_started_at, started_at, worker, last_error, failed_at,
                    fingerprint, interventions, waiting_since, lease_until, settings, cancel_requested,
                    0::smallint, lane, null::boolean, null::boolean, null::boolean, null::boolean, null::boolean,
                    null::timestamptz
                from taken;
            end if;
            if cardinality(full_ids) > 0 and windlass.park_v1(full_ids, now_at) < cardinality(full_ids) then
                is_busy := true;
            end if;
            exit when found_ready and got = wanted;
            select rank, run_at, id into after_rank, after_at, after_id
            from windlass.jobs where id = ids[cardinality(ids)];
            -- Many jobs that cannot start are passed in large steps.
            batch := greatest(wanted - got, case when chosen = '{}' then least(4 * batch, 1000) end, 1);
        end loop;
        if step_lane = 0 then
            fresh := got;
            fresh_ready := found_ready;
        else
            retries := retries + got;
            retry_ready := retry_ready or found_ready;
        end if;
        more := more or step > 1 and found_ready and got = wanted;
    end loop;
    ending.both_wait := fresh_ready and retry_ready;
    ending.exhausted := not (more or is_busy);
    ending.part := 2 + is_busy::integer;
    return next ending;
end
$$;

-- Ends attempts with success, as `succeed_v1` does, and unparks jobs of their keys. Returns these in rows of their own.
create function windlass.succeed_keyed_v1(
    ids uuid[], attempts integer[], results text[], details text[], now_at timestamptz
) returns table (
    done_id uuid, done_attempt integer, done_failures integer, done_snoozes integer,
    job_queue text, job_lane smallint, job_rank integer, job_run_at timestamptz, job_id uuid
)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    keys text[];
begin
    if exists (
        select from windlass.jobs
        where concurrency_key is not null and coalesce(lease_until, '-infinity') <> '-infinity'
    ) then
        keys := array(
            select distinct concurrency_key from windlass.jobs where id = any (ids) and concurrency_key is not null
        );
    end if;
    return query
    select succeed_v1.*, null::text, null::smallint, null::integer, null::timestamptz, null::uuid
    from windlass.succeed_v1(ids, attempts, results, details, now_at);
    if cardinality(keys) > 0 then
        -- A later statement: its snapshot sees jobs that were parked while the ends waited for the parking claim.
        return query
        select null::uuid, null::integer, null::integer, null::integer, unparked.*
        from windlass.unpark_v1(keys, now_at) as unparked;
    end if;
end
$$;
