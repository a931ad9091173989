-- Writes a failure group.
insert or replace into failure_groups (
    queue, kind, fingerprint, dead, retrying, first_seen_at, last_seen_at, sample, error, hours
) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
