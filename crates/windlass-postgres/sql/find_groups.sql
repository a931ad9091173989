-- Whether groups exist, when they were last seen, and how many others their queue and kind has if they do not.
--   $1 queues, $2 kinds, $3 fingerprints, $4 before when a group is old enough to be new again, $5 the fingerprint `other`
select
    given.number,
    case when known.last_seen_at <= $4 then greatest(known.last_seen_at, (
        select max(last_seen_at) from windlass.group_changes as change
        where (change.queue, change.kind, change.fingerprint) = (given.queue, given.kind, given.fingerprint)
    )) else known.last_seen_at end,
    case when known.queue is null then (
        select count(*) from windlass.failure_groups as other
        where other.queue = given.queue and other.kind = given.kind and other.fingerprint <> $5
    ) end
from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as given (queue, kind, fingerprint, number)
left join windlass.failure_groups as known using (queue, kind, fingerprint)
