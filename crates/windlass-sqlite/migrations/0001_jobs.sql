-- Times and durations are in microseconds. Queues, kinds and workers are ids of `names`.

create table names (
    id   integer primary key,
    text text not null unique
) strict;

create table policies (
    id   integer primary key,
    json text not null
) strict;

-- Jobs as they were enqueued. A job that was never claimed has no row elsewhere.
create table jobs (
    id         blob    not null primary key,
    queue      integer not null,
    kind       integer not null,
    priority   integer not null,
    run_at     integer not null,
    created_at integer not null,
    checksum   integer not null,   -- of the payload
    payload    text    not null,
    extra      text                -- fields that differ from their default, as JSON
) strict, without rowid;

-- The state of jobs that were claimed at least once or have finished. Includes the last attempt; earlier ones are in
-- `attempts`.
create table states (
    id               blob    not null primary key,
    state            integer not null,   -- 0 waiting, 1 running, 2 succeeded, 3 cancelled, 10… dead
    run_at           integer not null,
    attempt          integer not null,
    failures         integer not null,
    snoozes          integer not null,
    losses           integer not null,
    previous_delay   integer,
    first_started_at integer,
    started_at       integer,
    worker           integer,
    last_error       text,
    failed_at        integer,
    lease_until      integer,
    policy           integer,
    effective_max    integer,
    claim            blob,               -- the id of the claim, if the worker is remote
    cancel_requested integer not null,
    finished_at      integer,
    result           text,
    outcome          integer,            -- of the last attempt, if that finished the job
    detail           text
) strict, without rowid;
create index ended_badly on states (id) where state > 2;

-- Ended attempts, except the one that finished its job.
create table attempts (
    id          blob    not null,
    attempt     integer not null,
    retry_count integer not null,
    outcome     integer not null,
    started_at  integer not null,
    finished_at integer not null,
    worker      integer,
    error       text,
    detail      text,
    primary key (id, attempt)
) strict, without rowid;

-- The number of finished jobs of a queue in each state.
create table tallies (
    queue integer not null,
    state integer not null,
    count integer not null,
    primary key (queue, state)
) strict, without rowid;

-- Unique keys that can outlast their jobs.
create table holds (
    queue integer not null,
    key   text    not null,
    id    blob    not null,
    until integer not null,
    primary key (queue, key)
) strict, without rowid;

create index holds_by_time on holds (until);

-- Starts of jobs in queues with a rate limit.
create table starts (
    queue integer not null,
    at    integer not null,
    count integer not null
) strict;
create index starts_by_queue on starts (queue, at);

create table queues (
    name   text not null primary key,
    limits text not null
) strict, without rowid;

create table schedules (
    id         blob    not null primary key,
    name       text    not null unique,
    version    integer not null,
    definition text    not null,
    created_at integer not null,
    last_at    integer,
    next_at    integer
) strict, without rowid;

create index schedules_due on schedules (next_at, id) where next_at is not null;

create table occurrences (
    schedule blob    not null,
    at       integer not null,
    job      blob,              -- null if another job held the unique key, so that no job was created
    primary key (schedule, at)
) strict, without rowid;

create table documents (
    collection text    not null,
    name       text    not null,
    version    integer not null,
    value      text    not null,
    updated_at integer not null,
    expires_at integer,         -- from then on, reads do not see the document
    primary key (collection, name)
) strict, without rowid;
create index documents_expiry on documents (expires_at) where expires_at is not null;

create table records (
    cursor integer primary key autoincrement,
    topic  text    not null,
    at     integer not null,
    value  text    not null
) strict;
create index records_by_topic on records (topic, cursor);
create index records_by_time on records (topic, at, cursor);

create table nodes (
    name    text    not null primary key,
    about   text    not null,
    beat_at integer not null
) strict, without rowid;
