-- Failure groups, what operators did to jobs, and counts that are kept instead of counted.

-- A fingerprint is stored with its first bit flipped, so that the signed order is the order of causes.
alter table windlass.jobs
    add column fingerprint   bigint,        -- the cause of the last failure
    add column interventions text,          -- what operators did to it, as JSON
    add column waiting_since timestamptz;   -- null: since created_at
alter table windlass.finished
    add column fingerprint   bigint,
    add column interventions text,
    add column waiting_since timestamptz;
alter table windlass.dead
    add column fingerprint   bigint,
    add column interventions text,
    add column waiting_since timestamptz;

create index jobs_by_fingerprint on windlass.jobs (fingerprint, id) where fingerprint is not null;
create index dead_by_fingerprint on windlass.dead (fingerprint, id) where fingerprint is not null;
create index dead_by_fingerprint_and_time on windlass.dead (fingerprint, finished_at, id)
    where fingerprint is not null;
create index dead_by_time on windlass.dead (finished_at, id);
create index finished_by_time on windlass.finished (finished_at, id);

-- Also says since when the first job of a kind and queue is ready.
-- Jobs with a lease are never due. The second condition keeps the planner from using this index for claims,
-- which do not name it: a claim that walked all due jobs of a queue was four times slower.
drop index windlass.due_by_kind;
create index due_by_kind on windlass.jobs (kind, queue, run_at) where due and lease_until is null;

-- The number of jobs of each queue.
create table windlass.queue_tallies (
    queue     text   not null primary key collate "C",
    active    bigint not null default 0,   -- jobs that wait or run
    retries   bigint not null default 0,   -- active jobs of the retry lane
    future    bigint not null default 0,   -- waiting jobs that are not marked as due and not parked
    succeeded bigint not null default 0,
    dead      bigint not null default 0,
    cancelled bigint not null default 0
) with (fillfactor = 50);

-- Changes of these numbers, one row for each queue and statement. Writers only append; the maintenance adds the rows to
-- the tallies and deletes them. The sum of both tables is exact at any time.
create table windlass.queue_changes (
    queue     text   not null collate "C",
    active    bigint not null default 0,
    retries   bigint not null default 0,
    future    bigint not null default 0,
    succeeded bigint not null default 0,
    dead      bigint not null default 0,
    cancelled bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

insert into windlass.queue_changes (queue, active, retries, future)
select queue, count(*), count(*) filter (where lane = 1),
    count(*) filter (where not due and lease_until is null and unreadable is null)
from windlass.jobs group by queue;
insert into windlass.queue_changes (queue, succeeded, dead, cancelled)
select queue, coalesce(sum(count) filter (where state = 'succeeded'), 0),
    coalesce(sum(count) filter (where state = 'dead'), 0), coalesce(sum(count) filter (where state = 'cancelled'), 0)
from windlass.tallies group by queue;
drop table windlass.tallies;

-- The failing jobs of each queue, kind and cause.
create table windlass.failure_groups (
    queue         text        not null collate "C",
    kind          text        not null collate "C",
    fingerprint   bigint      not null,
    first_seen_at timestamptz not null,
    last_seen_at  timestamptz not null,
    sample        uuid,                        -- the job that failed last
    error         text        not null,        -- of the first failure
    dead          bigint      not null default 0,
    retrying      bigint      not null default 0,
    primary key (queue, kind, fingerprint)
) with (fillfactor = 50);

-- The failures of each group in each hour, in hours since 1970.
create table windlass.group_hours (
    queue       text   not null collate "C",
    kind        text   not null collate "C",
    fingerprint bigint not null,
    hour        bigint not null,
    failures    bigint not null,
    primary key (queue, kind, fingerprint, hour)
) with (fillfactor = 50);

-- Changes of failure groups that are not added to them yet, one row for each group and statement.
create table windlass.group_changes (
    id           bigint generated always as identity,
    queue        text   not null collate "C",
    kind         text   not null collate "C",
    fingerprint  bigint not null,
    dead         bigint not null default 0,
    retrying     bigint not null default 0,
    failures     bigint not null default 0,
    hour         bigint,
    last_seen_at timestamptz,
    sample       uuid
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- The results of the jobs that a replay revived, and changes that are not added yet.
create table windlass.revival_tallies (
    replay uuid   not null,
    count  text   not null collate "C",
    jobs   bigint not null,
    primary key (replay, count)
) with (fillfactor = 50);
create table windlass.revival_changes (
    replay uuid   not null,
    count  text   not null collate "C",
    jobs   bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- How far the causes of jobs that failed before this migration are filled in. The row is deleted when that is done.
create table windlass.cause_backfill (
    position uuid not null,
    in_dead  boolean not null   -- first come the dead jobs, then the active ones
);
insert into windlass.cause_backfill (position, in_dead) values ('00000000-0000-0000-0000-000000000000', true);
