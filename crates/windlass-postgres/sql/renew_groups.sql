-- Marks old groups as seen now. Only one transaction succeeds for each.  $1 queues, $2 kinds, $3 fingerprints, $4 old, $5 now
update windlass.failure_groups as known set last_seen_at = $5
from unnest($1::text[], $2::text[], $3::bigint[]) as given (queue, kind, fingerprint)
where known.queue = given.queue and known.kind = given.kind and known.fingerprint = given.fingerprint
  and known.last_seen_at <= $4
returning known.queue, known.kind, known.fingerprint
