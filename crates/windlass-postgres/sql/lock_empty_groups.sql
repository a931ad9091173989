-- Locks the groups without jobs that were last seen before $1. All changes were added just before. Skips a group that a
-- transaction uses.
select queue, kind, fingerprint from windlass.failure_groups
where dead = 0 and retrying = 0 and last_seen_at < $1
for update skip locked
