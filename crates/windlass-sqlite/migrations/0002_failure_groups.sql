-- Causes of failures, failure groups, and what operators did to jobs.

alter table states add column fingerprint   integer;  -- the cause of the last failure: 64 bits
alter table states add column waiting_since integer;  -- null if it waits since it was enqueued
alter table states add column interventions text;     -- what operators did, as JSON; null for most jobs

create index states_by_cause on states (fingerprint, id) where fingerprint is not null;
create index ended_badly_by_time on states (finished_at, id) where state > 2;

-- The failing jobs of one queue, kind and cause.
create table failure_groups (
    queue         integer not null,
    kind          integer not null,
    fingerprint   integer not null,
    dead          integer not null,
    retrying      integer not null,
    first_seen_at integer not null,
    last_seen_at  integer not null,
    sample        blob,               -- the job that failed last
    error         text    not null,
    hours         text    not null,   -- failures by hours since 1970, as JSON
    primary key (queue, kind, fingerprint)
) strict, without rowid;

-- The results of the jobs that replays revived.
create table revivals (
    replay             blob    not null primary key,
    pending            integer not null,
    recovered          integer not null,
    failed_again       integer not null,
    gone               integer not null,
    first_succeeded    integer not null,
    first_failed       integer not null,
    first_failed_alike integer not null
) strict, without rowid;

-- Jobs that failed before this migration get their cause when the store is opened. The only row is the last job that
-- has got one; there is no row when all have.
create table backfill (
    last_id blob not null
) strict;
insert into backfill (last_id) values (x'');
