-- The groups that exist, and when they were last seen. Locks them, so that they are not trimmed before this transaction ends.
--   $1 queues, $2 kinds, $3 fingerprints, $4 before when a group is old enough to be new again
select
    known.queue, known.kind, known.fingerprint,
    case when known.last_seen_at <= $4 then greatest(known.last_seen_at, (
        select max(last_seen_at) from windlass.group_changes as change
        where (change.queue, change.kind, change.fingerprint) = (known.queue, known.kind, known.fingerprint)
    )) else known.last_seen_at end
from unnest($1::text[], $2::text[], $3::bigint[]) as given (queue, kind, fingerprint)
join windlass.failure_groups as known using (queue, kind, fingerprint)
for key share of known
