-- Failure groups with their changes that are not added yet, in order.
--   $1 queue, $2 kind, $3 fingerprint, $4-$6 the group before the first one, $7 limit, $8 first hour, $9 last hour
with page as materialized (
    select * from windlass.failure_groups
    where ($1::text is null or queue = $1) and ($2::text is null or kind = $2) and ($3::bigint is null or fingerprint = $3)
      and ($4::text is null or (queue, kind, fingerprint) > ($4, $5, $6))
    order by queue, kind, fingerprint
    limit $7
), change as (
    select
        queue, kind, fingerprint, sum(dead) as dead, sum(retrying) as retrying, max(last_seen_at) as last_seen_at,
        (array_agg(sample order by id desc) filter (where sample is not null))[1] as sample
    from windlass.group_changes group by queue, kind, fingerprint
), per_hour as (
    select queue, kind, fingerprint, hour, sum(failures)::bigint as failures from (
        select queue, kind, fingerprint, hour, failures from page join windlass.group_hours using (queue, kind, fingerprint)
        union all
        select queue, kind, fingerprint, hour, failures from windlass.group_changes
    ) as counted
    where hour between $8 and $9
    group by queue, kind, fingerprint, hour
), hours as (
    select queue, kind, fingerprint, array_agg(hour) as hours, array_agg(failures) as failures
    from per_hour group by queue, kind, fingerprint
)
select
    queue, kind, fingerprint, (page.dead + coalesce(change.dead, 0))::bigint,
    (page.retrying + coalesce(change.retrying, 0))::bigint, page.first_seen_at,
    greatest(page.last_seen_at, change.last_seen_at), coalesce(change.sample, page.sample), page.error, hours.hours,
    hours.failures
from page left join change using (queue, kind, fingerprint) left join hours using (queue, kind, fingerprint)
order by queue, kind, fingerprint
