-- Removes failure groups without jobs that were last seen before $1. All changes were added just before.
with removed as (
    delete from windlass.failure_groups as known
    where dead = 0 and retrying = 0 and last_seen_at < $1 and not exists (
        select from windlass.group_changes as change
        where (change.queue, change.kind, change.fingerprint) = (known.queue, known.kind, known.fingerprint)
    )
    returning queue, kind, fingerprint
)
delete from windlass.group_hours as hours using removed
where (hours.queue, hours.kind, hours.fingerprint) = (removed.queue, removed.kind, removed.fingerprint)
