-- Active jobs. A finished job moves to `finished` or `dead`.
create table windlass.jobs (
    id                uuid        not null primary key,
    queue             text        not null collate "C",
    kind              text        not null collate "C",
    lane              smallint    not null,   -- 0 fresh, 1 retry: at least one attempt failed
    rank              integer     not null,   -- the negated priority, so that all columns of the claim order ascend
    run_at            timestamptz not null,
    created_at        timestamptz not null,
    due               boolean     not null,   -- it waits, and a claim has seen that its time has come
    lease_until       timestamptz,            -- not null while it runs
    deadline          timestamptz,
    unique_key        text collate "C",
    key_until         timestamptz,            -- until when the unique key outlasts the job
    concurrency_key   text collate "C",
    concurrency_limit integer,
    payload           text        not null,
    extra             text,                   -- fields that differ from their default, as JSON
    attempt           integer     not null default 0,
    failures          integer     not null default 0,
    snoozes           integer     not null default 0,
    losses_in_a_row   integer     not null default 0,
    previous_delay    bigint,                 -- microseconds
    first_started_at  timestamptz,
    started_at        timestamptz,
    worker            text collate "C",
    last_error        text,
    failed_at         timestamptz,
    settings          integer,                -- the retry settings of its claim
    cancel_requested  boolean     not null default false,
    unreadable        text                    -- why an old version could not read it; parked until a version can
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- The claim order. Claimed jobs leave it.
create index ready on windlass.jobs (queue, lane, rank, run_at, id) where due;
-- The queues that have due jobs of a kind.
-- Jobs with a lease are never due. The second condition keeps the planner from using this index for claims,
-- which do not name it: a claim that walked all due jobs of a queue was four times slower.
create index due_by_kind on windlass.jobs (kind, queue) where due and lease_until is null;
create index future on windlass.jobs (run_at, id) where not due and lease_until is null and unreadable is null;
create index leases on windlass.jobs (lease_until, id) where lease_until is not null;
create index deadlines on windlass.jobs (deadline, id) where deadline is not null and lease_until is null and unreadable is null;
create index parked on windlass.jobs (id) where unreadable is not null;
create index keyed_ready on windlass.jobs (queue) where due and concurrency_key is not null;
create index keyed_running on windlass.jobs (concurrency_key) where lease_until is not null and concurrency_key is not null;

-- Succeeded and cancelled jobs. Retention drops whole days, not rows.
create table windlass.finished (
    id               uuid        not null,
    queue            text        not null collate "C",
    kind             text        not null collate "C",
    rank             integer     not null,
    run_at           timestamptz not null,
    created_at       timestamptz not null,
    payload          text        not null,
    extra            text,
    attempt          integer     not null,
    failures         integer     not null,
    snoozes          integer     not null,
    losses_in_a_row  integer     not null,
    previous_delay   bigint,
    first_started_at timestamptz,
    started_at       timestamptz,
    worker           text collate "C",
    last_error       text,
    failed_at        timestamptz,
    state            text        not null,   -- succeeded, cancelled, dead
    reason           text,                   -- why a job is dead
    finished_at      timestamptz not null,
    result           text,
    outcome          text,                   -- of the last attempt, if that finished the job
    detail           text,
    primary key (id, finished_at)
) partition by range (finished_at);
create table windlass.finished_else partition of windlass.finished default;

-- Dead jobs, kept until an operator or the retention removes them.
create table windlass.dead (like windlass.finished including defaults, primary key (id));

-- Ended attempts, except the one that finished its job: the row of the job has it.
create table windlass.attempts (
    job         uuid        not null,
    attempt     integer     not null,
    retry_count integer     not null,
    outcome     text        not null,
    started_at  timestamptz not null,
    finished_at timestamptz not null,
    worker      text collate "C",
    error       text,
    detail      text,
    primary key (job, attempt, finished_at)
) partition by range (finished_at);
create table windlass.attempts_else partition of windlass.attempts default;

-- The number of finished jobs of a queue in each state, as changes that are summed up.
create table windlass.tallies (
    queue text   not null collate "C",
    state text   not null,
    count bigint not null
);
create index tallies_by_queue on windlass.tallies (queue, state);

-- The holders of unique keys: while the job is active (`living`), and until `until` if the key outlasts it.
create table windlass.unique_keys (
    queue  text    not null collate "C",
    key    text    not null collate "C",
    job    uuid    not null,
    living boolean not null,
    until  timestamptz,
    primary key (queue, key)
);

-- Retry settings of claims.
create table windlass.settings (
    id   integer generated always as identity primary key,
    json text not null
);
create unique index settings_by_json on windlass.settings (md5(json));

-- Recent claims, so that a repeated claim gets the same answer.
create table windlass.claims (
    id       uuid        not null primary key,
    at       timestamptz not null,
    jobs     uuid[]      not null,
    attempts integer[]   not null
);
create index claims_by_time on windlass.claims (at);

-- Queue limits.
create table windlass.queues (
    name      text    not null primary key collate "C",
    limits    text    not null,
    bounded   boolean not null,   -- there are limits that a claim must check
    paused    boolean not null,
    max_depth bigint
);

-- Starts of jobs in queues with a rate limit.
create table windlass.starts (
    queue text        not null collate "C",
    at    timestamptz not null,
    count integer     not null
);
create index starts_by_queue on windlass.starts (queue, at);

create table windlass.schedules (
    id         uuid   not null primary key,
    name       text   not null unique collate "C",
    version    bigint not null,
    definition text   not null,
    created_at timestamptz not null,
    last_at    timestamptz,
    next_at    timestamptz
);
create index schedules_due on windlass.schedules (next_at, id) where next_at is not null;

create table windlass.occurrences (
    schedule uuid        not null,
    at       timestamptz not null,
    job      uuid,                  -- null if another job held the unique key, so that no job was created
    primary key (schedule, at)
);

create table windlass.documents (
    collection text   not null collate "C",
    name       text   not null collate "C",
    version    bigint not null,
    value      text   not null,
    updated_at timestamptz not null,
    expires_at timestamptz,         -- from then on, reads do not see the document
    primary key (collection, name)
);
create index documents_expiry on windlass.documents (expires_at) where expires_at is not null;

create table windlass.records (
    cursor bigint generated always as identity primary key,
    topic  text        not null collate "C",
    at     timestamptz not null,
    value  text        not null
);
create index records_by_topic on windlass.records (topic, cursor);
create index records_by_time on windlass.records (topic, at, cursor);

create table windlass.nodes (
    name    text        not null primary key collate "C",
    about   text        not null,
    beat_at timestamptz not null
);
