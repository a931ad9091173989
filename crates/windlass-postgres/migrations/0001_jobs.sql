-- Jobs that wait or run. A job that is over moves to `finished` or `dead`.
create table windlass.jobs (
    id                uuid        not null primary key,
    queue             text        not null collate "C",
    kind              text        not null collate "C",
    lane              smallint    not null,   -- 0 fresh, 1 retry: at least one attempt failed
    rank              integer     not null,   -- the negated priority, so that all of the order ascends
    run_at            timestamptz not null,
    created_at        timestamptz not null,
    due               boolean     not null,   -- it waits, and its time was seen to have come
    lease_until       timestamptz,            -- it runs
    deadline          timestamptz,
    unique_key        text collate "C",
    key_until         timestamptz,            -- the unique key outlasts the job until then
    concurrency_key   text collate "C",
    concurrency_limit integer,
    payload           text        not null,
    extra             text,                   -- what most jobs have not, as JSON
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
    settings          integer,                -- what the claim said about retrying
    cancel_requested  boolean     not null default false,
    unreadable        text                    -- why a version could not read it: parked until one can
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- The order of claims. What is claimed leaves it.
create index ready on windlass.jobs (queue, lane, rank, run_at, id) where due;
-- Which queues have due jobs of a kind.
create index due_by_kind on windlass.jobs (kind, queue) where due;
create index future on windlass.jobs (run_at, id) where not due and lease_until is null and unreadable is null;
create index leases on windlass.jobs (lease_until, id) where lease_until is not null;
create index deadlines on windlass.jobs (deadline, id) where deadline is not null and lease_until is null and unreadable is null;
create index parked on windlass.jobs (id) where unreadable is not null;
create index keyed_ready on windlass.jobs (queue) where due and concurrency_key is not null;
create index keyed_running on windlass.jobs (concurrency_key) where lease_until is not null and concurrency_key is not null;

-- Jobs that succeeded or were cancelled: whole days are dropped, not rows.
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
    reason           text,                   -- of the dead
    finished_at      timestamptz not null,
    result           text,
    outcome          text,                   -- of the last attempt, if the job ended by it
    detail           text,
    primary key (id, finished_at)
) partition by range (finished_at);
create table windlass.finished_else partition of windlass.finished default;

-- Dead jobs, kept until a person or the retention removes them.
create table windlass.dead (like windlass.finished including defaults, primary key (id));

-- Ended attempts but for the one that ended its job, which is kept with it.
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

-- How many jobs of a queue have ended in each state: changes, to be added up.
create table windlass.tallies (
    queue text   not null collate "C",
    state text   not null,
    count bigint not null
);
create index tallies_by_queue on windlass.tallies (queue, state);

-- Who holds a unique key: while it lives, and until then.
create table windlass.unique_keys (
    queue  text    not null collate "C",
    key    text    not null collate "C",
    job    uuid    not null,
    living boolean not null,
    until  timestamptz,
    primary key (queue, key)
);

-- What claims said about retrying.
create table windlass.settings (
    id   integer generated always as identity primary key,
    json text not null
);
create unique index settings_by_json on windlass.settings (md5(json));

-- The latest claims, to answer them again.
create table windlass.claims (
    id       uuid        not null primary key,
    at       timestamptz not null,
    jobs     uuid[]      not null,
    attempts integer[]   not null
);
create index claims_by_time on windlass.claims (at);

-- Bounds of queues.
create table windlass.queues (
    name      text    not null primary key collate "C",
    limits    text    not null,
    bounded   boolean not null,   -- there is something that a claim must look at
    paused    boolean not null,
    max_depth bigint
);

-- When jobs of queues with a rate were started.
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
    job      uuid,                  -- none where another job held its unique key
    primary key (schedule, at)
);

create table windlass.documents (
    collection text   not null collate "C",
    name       text   not null collate "C",
    version    bigint not null,
    value      text   not null,
    updated_at timestamptz not null,
    expires_at timestamptz,         -- from then on it is absent
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
