-- The number of waiting jobs of queues. Stops counting at the bound of each.  $1 queues, $2 their max_depth
select bound.queue, (
    select count(*) from (
        select from windlass.jobs where queue = bound.queue and due limit bound.max_depth
    ) as due
) + (
    select count(*) from (
        select from windlass.jobs where queue = bound.queue and not due and lease_until is null and unreadable is null
        limit bound.max_depth
    ) as later
) + (
    select count(*) from (
        select from windlass.jobs where queue = bound.queue and lease_until is null and unreadable is not null
        limit bound.max_depth
    ) as set_aside
)
from unnest($1::text[], $2::bigint[]) as bound (queue, max_depth)
