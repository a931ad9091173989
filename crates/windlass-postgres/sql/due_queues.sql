-- Names queues with due jobs of some kinds, by name: for each kind, the scan jumps from one queue to the next.
--   $1 kinds, $2 where to begin, $3 how names begin, $4 what they are like, $5 now, $6 how many
-- Both columns are compared as one row: then only the index on both can give the order, whatever the statistics say.
with recursive found (kind, queue, named, count) as (
    select first.kind, first.queue, first.named, first.named::integer
    from unnest($1::text[]) as wanted (kind), lateral (
        select kind, queue,
            queue like $4 and not exists (select from windlass.queues where name = queue and paused) as named
        from windlass.jobs
        where due and (kind, queue) >= (wanted.kind, $2) and run_at <= $5
        order by kind, queue
        limit 1
    ) as first
    where first.kind = wanted.kind and starts_with(first.queue, $3)
    union all
    select next.kind, next.queue, next.named, found.count + next.named::integer
    from found, lateral (
        select kind, queue,
            queue like $4 and not exists (select from windlass.queues where name = queue and paused) as named
        from windlass.jobs
        where due and (kind, queue) > (found.kind, found.queue) and run_at <= $5
        order by kind, queue
        limit 1
    ) as next
    where next.kind = found.kind and starts_with(next.queue, $3) and found.count < $6
)
select distinct queue from found where named order by queue limit $6
