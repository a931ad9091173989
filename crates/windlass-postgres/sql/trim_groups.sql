-- Removes these groups, unless a job has joined them since. A statement of its own after the lock: its snapshot has the
-- changes of all transactions that had locked one of the groups before.  $1 queues, $2 kinds, $3 fingerprints
with removed as (
    delete from windlass.failure_groups as known
    using unnest($1::text[], $2::text[], $3::bigint[]) as given (queue, kind, fingerprint)
    where known.queue = given.queue and known.kind = given.kind and known.fingerprint = given.fingerprint
      and not exists (
        select from windlass.group_changes as change
        where (change.queue, change.kind, change.fingerprint) = (known.queue, known.kind, known.fingerprint)
    )
    returning known.queue, known.kind, known.fingerprint
)
delete from windlass.group_hours as hours using removed
where (hours.queue, hours.kind, hours.fingerprint) = (removed.queue, removed.kind, removed.fingerprint)
