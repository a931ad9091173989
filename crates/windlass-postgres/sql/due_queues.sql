-- Names of queues with due jobs of some kinds, sorted. For each kind, the scan jumps from one queue to the next (loose index
-- scan), so jobs and idle queues cost nothing.
--   $1 kinds, $2 first name, $3 prefix of names, $4 pattern of names, $5 now, $6 limit
-- Both columns are compared as one row: then only the index on both can give the order, whatever the statistics say.
with recursive found (kind, queue, matches, count) as (
    select first.kind, first.queue, first.matches, first.matches::integer
    from unnest($1::text[]) as given (kind), lateral (
        select kind, queue,
            queue like $4 and not exists (select from windlass.queues where name = queue and paused) as matches
        from windlass.jobs
        where due and lease_until is null and (kind, queue) >= (given.kind, $2) and run_at <= $5
        order by kind, queue
        limit 1
    ) as first
    where first.kind = given.kind and starts_with(first.queue, $3)
    union all
    select next.kind, next.queue, next.matches, found.count + next.matches::integer
    from found, lateral (
        select kind, queue,
            queue like $4 and not exists (select from windlass.queues where name = queue and paused) as matches
        from windlass.jobs
        where due and lease_until is null and (kind, queue) > (found.kind, found.queue) and run_at <= $5
        order by kind, queue
        limit 1
    ) as next
    where next.kind = found.kind and starts_with(next.queue, $3) and found.count < $6
)
select distinct queue from found where matches order by queue limit $6
