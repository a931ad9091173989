-- Adds up to $1 changes to the tallies of queues. Returns how many.
with taken as (
    delete from windlass.queue_changes where ctid = any (array(select ctid from windlass.queue_changes limit $1))
    returning *
), folded as (
    insert into windlass.queue_tallies as tally (queue, active, retries, future, succeeded, dead, cancelled)
    select queue, sum(active), sum(retries), sum(future), sum(succeeded), sum(dead), sum(cancelled)
    from taken group by queue order by queue
    on conflict (queue) do update set
        active = tally.active + excluded.active, retries = tally.retries + excluded.retries,
        future = tally.future + excluded.future, succeeded = tally.succeeded + excluded.succeeded,
        dead = tally.dead + excluded.dead, cancelled = tally.cancelled + excluded.cancelled
)
select count(*) from taken
