-- Appends changes of failure groups.
insert into windlass.group_changes (queue, kind, fingerprint, dead, retrying, failures, hour, last_seen_at, sample)
select * from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::timestamptz[],
    $9::uuid[]
)
