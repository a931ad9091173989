-- Unparks jobs that can be read now. A claim marks them as due again.  $1 ids
with unparked as (
    update windlass.jobs set unreadable = null where id = any ($1) and unreadable is not null
    returning queue, lease_until
)
insert into windlass.queue_changes (queue, future)
select queue, count(*) from unparked where lease_until is null group by queue
