-- Adds up to $1 changes to failure groups. Returns how many. The groups exist: the transaction of a change adds or locks
-- its group, or the group has jobs or a recent failure, so that it is not trimmed.
with taken as (
    delete from windlass.group_changes where ctid = any (array(select ctid from windlass.group_changes limit $1))
    returning *
), folded as (
    insert into windlass.failure_groups as known
        (queue, kind, fingerprint, first_seen_at, last_seen_at, sample, error, dead, retrying)
    select
        queue, kind, fingerprint, coalesce(min(last_seen_at), 'epoch'), coalesce(max(last_seen_at), 'epoch'),
        (array_agg(sample order by id desc) filter (where sample is not null))[1], '', sum(dead), sum(retrying)
    from taken group by queue, kind, fingerprint order by queue, kind, fingerprint
    on conflict (queue, kind, fingerprint) do update set
        last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at),
        sample = coalesce(excluded.sample, known.sample),
        dead = known.dead + excluded.dead, retrying = known.retrying + excluded.retrying
), per_hour as (
    insert into windlass.group_hours as known (queue, kind, fingerprint, hour, failures)
    select queue, kind, fingerprint, hour, sum(failures) from taken where failures <> 0
    group by queue, kind, fingerprint, hour order by queue, kind, fingerprint, hour
    on conflict (queue, kind, fingerprint, hour) do update set failures = known.failures + excluded.failures
)
select count(*) from taken
