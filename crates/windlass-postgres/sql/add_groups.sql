-- Adds groups as far as there is space for them.
--   $1 queues, $2 kinds, $3 fingerprints, $4 when they were first seen, $5 errors, $6 most groups, $7 the fingerprint `other`
with given as (
    select * from unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::text[])
        with ordinality as given (queue, kind, fingerprint, seen_at, error, number)
), counted as materialized (
    select queue, kind, (
        select count(*) from windlass.failure_groups as other
        where other.queue = pair.queue and other.kind = pair.kind and other.fingerprint <> $7
    ) as count
    from (select distinct queue, kind from given) as pair
), new as (
    select
        queue, kind, fingerprint, seen_at, error,
        row_number() over (partition by queue, kind, fingerprint = $7 order by number) + counted.count as count
    from given join counted using (queue, kind)
    where not exists (
        select from windlass.failure_groups as known
        where (known.queue, known.kind, known.fingerprint) = (given.queue, given.kind, given.fingerprint)
    )
)
insert into windlass.failure_groups (queue, kind, fingerprint, first_seen_at, last_seen_at, error)
select queue, kind, fingerprint, seen_at, seen_at, error from new
where count <= $6 or fingerprint = $7
order by queue, kind, fingerprint
on conflict do nothing
returning queue, kind, fingerprint
