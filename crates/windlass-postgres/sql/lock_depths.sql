-- The max_depth of queues. Locks them against other enqueues until the end of the transaction.  $1 queues
select name, max_depth from windlass.queues
where name = any ($1) and max_depth is not null
order by name
for update
