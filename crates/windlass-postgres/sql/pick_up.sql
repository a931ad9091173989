-- Picks up jobs that were set aside and can be read now. A claim marks them as due again.  $1 ids
with readable as (
    update windlass.jobs set unreadable = null where id = any ($1) and unreadable is not null
    returning queue, lease_until
)
insert into windlass.queue_changes (queue, future)
select queue, count(*) from readable where lease_until is null group by queue
