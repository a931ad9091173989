-- Concurrency keys: a lock for each key, and parked jobs.
--
-- A claim that meets a due job with a concurrency key locks the key, counts the running jobs with it, and starts the
-- job or parks it. A parked job stays due, but moves to a lane that no claim looks at: 2 instead of 0 (fresh), 3
-- instead of 1 (retry). When attempts end, or when a due job with a key leaves its queue, the same transaction unparks
-- jobs.
--
-- A job must not be parked while the last attempt that fills its key ends: the transaction that ends it would not see
-- the parked job. So `park_v1` locks the running jobs that it counts. Their end then waits, and sees the parked job.
-- Renewals of their leases do not wait: an end deletes the row or locks it for update, a renewal does neither.
--
-- Lock order: a claim locks due jobs first and keys after that, both without waiting. If it takes nothing because other
-- claims hold its keys, the driver repeats it. The repeated claim waits for its first keys, in the order of their slots
-- (see the table below), while it holds no other keys. A transaction that ends attempts locks running jobs and no keys.

-- A claim locks a key by locking the row of its slot: the last 16 bits of its hash. With one row for each key, claims
-- would have to create rows, and someone would have to remove them.
create table windlass.key_locks (slot integer not null primary key);
insert into windlass.key_locks select generate_series(0, 65535);

-- First, because it needs the strongest lock on the table. Later, it could deadlock with a claim.
drop index windlass.keyed_running, windlass.keyed_ready;

-- A plain `lease_until is not null` would let the planner walk all leases to count those of a key.
create index running_by_key on windlass.jobs (concurrency_key)
where concurrency_key is not null and coalesce(lease_until, '-infinity') <> '-infinity';

-- In the same way, a plain `due` would let the planner walk all due jobs.
create index parked_by_key
on windlass.jobs (concurrency_key, queue, lane, kind, concurrency_limit, rank, run_at, id)
where coalesce(due, false) and lane >= 2;

-- Due jobs with a key that are not parked. This condition matches no other index either.
create index keyed_waiting on windlass.jobs (queue)
where coalesce(due, false) and concurrency_key is not null and lane < 2;

-- Claims jobs of a queue as `claim_v1` does, and looks for due jobs with a key in the index above. `enable_sort = off`:
-- with statistics from a time when nearly all jobs had keys, the planner expected so few others that it read and sorted
-- all due jobs.
create function windlass.claim_v2(
    claim_id uuid, claim_lock bigint, claim_queue text, kinds text[], includes_kinds boolean, now_at timestamptz,
    lease timestamptz, claim_settings integer, claim_worker text,
    fresh_rank integer, fresh_at timestamptz, fresh_id uuid,
    retry_rank integer, retry_at timestamptz, retry_id uuid,
    jobs_max integer, retries_first integer, fresh_max integer, retries_max integer, promote_max integer
) returns setof windlass.claimed_v1
language plpgsql set enable_seqscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan
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
        exists (
            select from windlass.jobs
            where queue = claim_queue and coalesce(due, false) and concurrency_key is not null and lane < 2
        ),
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
            -- A lane that gave less than was asked for has no more jobs. More retries may follow in step 3.
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
                for key share skip locked
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

-- Unparks jobs of these keys, and returns them. For each queue, lane, kind and limit it unparks as many jobs as the key
-- has capacity for: the jobs of the other groups may not start, because their queue is paused or no worker knows their
-- kind.
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
        limit 5000              -- the scan for missed jobs finds the others
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

-- Claims jobs like `claim_v2`, and also those with concurrency keys. Parks jobs whose key is full. Looks only at jobs
-- after the given positions. `part` of the rows, in addition to those of `claimed_v1`:
--   3  the last row, instead of 2: the claim left jobs because other transactions used their keys
--   4  the last row, instead of 2: the claim ended early, because it passed `park_max` jobs and parked more of them than
--      it left; the next call continues
--   5  the first job of each lane that the claim left
-- A key may have capacity for only a few jobs of both lanes, so jobs are chosen slot by slot: of the first N slots,
-- retries get `retry_shares[N]`.
create function windlass.claim_keyed_v1(
    claim_id uuid, claim_lock bigint, claim_queue text, kinds text[], includes_kinds boolean, now_at timestamptz,
    lease timestamptz, claim_settings integer, claim_worker text,
    fresh_rank integer, fresh_at timestamptz, fresh_id uuid,
    retry_rank integer, retry_at timestamptz, retry_id uuid,
    jobs_max integer, retries_first integer, fresh_max integer, retries_max integer, promote_max integer, wait boolean,
    retry_shares integer[], park_max integer
) returns setof windlass.claimed_v1
language plpgsql set enable_seqscan = off set enable_sort = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    answer       windlass.claimed_v1;
    ending       windlass.claimed_v1;
    unparked     record;
    counted      record;
    fresh_size   integer := greatest(1, least(fresh_max, jobs_max - retries_first));
    retry_size   integer := greatest(1, least(retries_max, retries_first));
    fresh_ids    uuid[];                 -- the candidates of each lane, in claim order,
    retry_ids    uuid[];
    fresh_keys   integer[];              -- the position of their key in `keys`; 0 for those without a key,
    retry_keys   integer[];
    fresh_limits integer[];              -- the limit of their key,
    retry_limits integer[];
    fresh_count  integer;                -- how many these are,
    retry_count  integer;
    fresh_next   integer;                -- the next one,
    retry_next   integer;
    fresh_end    boolean;                -- whether no others follow,
    retry_end    boolean;
    fresh_waits  boolean := false;       -- whether one could start when the claim began,
    retry_waits  boolean := false;
    fresh_got    integer := 0;           -- and how many the claim takes
    retry_got    integer := 0;
    got_before   integer;                -- how many jobs the claim had when it read the candidates
    wanted       integer;
    keys         text[] := '{}';
    new_keys     text[];
    running      integer[] := '{}';      -- by key; null if another transaction holds the key
    at_first     integer[] := '{}';      -- the same when the claim locked the key
    candidate    uuid;
    key_number   integer;
    key_limit    integer;
    is_retry     boolean;
    chosen       uuid[] := '{}';
    full_ids     uuid[] := '{}';         -- candidates whose key is full
    passed_ids   uuid[] := '{}';         -- candidates that stay because another transaction holds their key
    passed       integer;                -- how many these are
    parked       bigint := 0;
    passed_many  boolean;
    is_busy      boolean;
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
        select * from windlass.claim_v2(
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
    if ending.repeated or ending.bounded then
        return next ending;
        return;
    end if;
    -- If only one lane waits, it gets all slots at once.
    if not ending.both_wait then
        fresh_size := greatest(1, least(fresh_max, jobs_max));
        retry_size := greatest(1, least(retries_max, jobs_max));
    end if;

    loop
        with fresh as materialized (
            select 0 as lane, id, rank, run_at, concurrency_key as key, concurrency_limit as key_limit
            from windlass.jobs
            where queue = claim_queue and jobs.lane = 0 and due and (rank, run_at, id) > (fresh_rank, fresh_at, fresh_id)
              and run_at <= now_at and (deadline is null or deadline >= now_at) and (kind = any (kinds)) = includes_kinds
            order by rank, run_at, id
            limit fresh_size
            for update skip locked
        ), retry as materialized (
            select 1 as lane, id, rank, run_at, concurrency_key as key, concurrency_limit as key_limit
            from windlass.jobs
            where queue = claim_queue and jobs.lane = 1 and due and (rank, run_at, id) > (retry_rank, retry_at, retry_id)
              and run_at <= now_at and (deadline is null or deadline >= now_at) and (kind = any (kinds)) = includes_kinds
            order by rank, run_at, id
            limit retry_size
            for update skip locked
        ), found as materialized (
            select * from fresh union all select * from retry
        ), known as materialized (
            select * from unnest(keys) with ordinality as known (key, number)
        ), added as materialized (
            select key, cardinality(keys) + row_number() over (order by key) as number
            from (select key from found where key is not null except select key from known) as added
        ), numbered as materialized (
            select found.*, coalesce(number, 0)::integer as number
            from found left join (select * from known union all select * from added) as met using (key)
        )
        select
            array_agg(id order by rank, run_at, id) filter (where lane = 0),
            array_agg(number order by rank, run_at, id) filter (where lane = 0),
            array_agg(numbered.key_limit order by rank, run_at, id) filter (where lane = 0),
            array_agg(id order by rank, run_at, id) filter (where lane = 1),
            array_agg(number order by rank, run_at, id) filter (where lane = 1),
            array_agg(numbered.key_limit order by rank, run_at, id) filter (where lane = 1),
            (select array_agg(key order by number) from added)
        into fresh_ids, fresh_keys, fresh_limits, retry_ids, retry_keys, retry_limits, new_keys
        from numbered;
        if new_keys is not null then
            running := running || array_fill(null::integer, array[cardinality(new_keys)]);
            for counted in select * from windlass.lock_keys_v1(new_keys, now_at, wait) loop
                running[cardinality(keys) + counted.key_number] := counted.running;
            end loop;
            at_first := at_first || running[cardinality(keys) + 1:];
            keys := keys || new_keys;
            wait := false;
        end if;
        fresh_count := coalesce(cardinality(fresh_ids), 0);
        retry_count := coalesce(cardinality(retry_ids), 0);
        fresh_end := fresh_count < fresh_size;
        retry_end := retry_count < retry_size;
        fresh_next := 1;
        retry_next := 1;
        got_before := fresh_got + retry_got;
        for number in 1..fresh_count loop
            exit when fresh_waits;
            key_number := fresh_keys[number];
            fresh_waits := key_number = 0 or coalesce(at_first[key_number] < fresh_limits[number], false);
        end loop;
        for number in 1..retry_count loop
            exit when retry_waits;
            key_number := retry_keys[number];
            retry_waits := key_number = 0 or coalesce(at_first[key_number] < retry_limits[number], false);
        end loop;

        -- One candidate after the other, until the claim is full or a lane must be read again.
        while fresh_got + retry_got < jobs_max and cardinality(passed_ids) + cardinality(full_ids) < park_max
            and (fresh_next <= fresh_count or fresh_end or fresh_got >= fresh_max)
            and (retry_next <= retry_count or retry_end or retry_got >= retries_max)
        loop
            is_retry := retry_next <= retry_count and retry_got < retries_max and (
                retry_got < retry_shares[fresh_got + retry_got + 1] or fresh_next > fresh_count or fresh_got >= fresh_max
            );
            if is_retry then
                candidate := retry_ids[retry_next];
                key_number := retry_keys[retry_next];
                key_limit := retry_limits[retry_next];
                retry_next := retry_next + 1;
            else
                exit when fresh_next > fresh_count or fresh_got >= fresh_max;
                candidate := fresh_ids[fresh_next];
                key_number := fresh_keys[fresh_next];
                key_limit := fresh_limits[fresh_next];
                fresh_next := fresh_next + 1;
            end if;
            if key_number > 0 then
                if running[key_number] is null then
                    passed_ids := passed_ids || candidate;
                    continue;
                elsif running[key_number] >= key_limit then
                    full_ids := full_ids || candidate;
                    continue;
                end if;
                running[key_number] := running[key_number] + 1;
            end if;
            chosen := chosen || candidate;
            if is_retry then
                retry_got := retry_got + 1;
            else
                fresh_got := fresh_got + 1;
            end if;
        end loop;
        fresh_end := fresh_end and fresh_next > fresh_count;
        retry_end := retry_end and retry_next > retry_count;

        wanted := jobs_max - fresh_got - retry_got;
        passed := cardinality(passed_ids);
        passed_many := passed + cardinality(full_ids) >= park_max;
        exit when wanted <= 0 or passed_many
            or (fresh_end or fresh_got >= fresh_max) and (retry_end or retry_got >= retries_max);
        -- Continue after the last candidates, in large steps where none of them could start.
        if fresh_next > 1 then
            select rank, run_at, id into fresh_rank, fresh_at, fresh_id
            from windlass.jobs where id = fresh_ids[fresh_next - 1];
        end if;
        if retry_next > 1 then
            select rank, run_at, id into retry_rank, retry_at, retry_id
            from windlass.jobs where id = retry_ids[retry_next - 1];
        end if;
        if fresh_got + retry_got = got_before then
            wanted := greatest(wanted, least(4 * greatest(fresh_size, retry_size), 1000));
        end if;
        fresh_size := case when fresh_got < fresh_max then wanted else 1 end;
        retry_size := case when retry_got < retries_max then wanted else 1 end;
    end loop;

    if chosen <> '{}' then
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
        from taken
        order by lane desc;
    end if;
    if full_ids <> '{}' then
        parked := windlass.park_v1(full_ids, now_at);
    end if;
    is_busy := passed > 0 or parked < cardinality(full_ids);
    if is_busy then
        answer := null;
        answer.part := 5;
        for answer.queue, answer.lane, answer.rank, answer.run_at, answer.id in
            select distinct on (lane) queue, lane, rank, run_at, id from windlass.jobs
            where id = any (passed_ids || full_ids) and due and lane < 2
            order by lane, rank, run_at, id
        loop
            return next answer;
        end loop;
    end if;
    ending.both_wait := fresh_waits and retry_waits;
    ending.exhausted := fresh_end and retry_end and not is_busy;
    ending.part := case when passed_many and parked > passed then 4 when is_busy then 3 else 2 end;
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
