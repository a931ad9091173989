-- Deletes finished jobs and subtracts them from the counts.  $1 ids
with removed as (
    delete from /* table */ where id = any ($1) returning queue, state
)
insert into windlass.queue_changes (queue, succeeded, dead, cancelled)
select
    queue, -count(*) filter (where state = 'succeeded'), -count(*) filter (where state = 'dead'),
    -count(*) filter (where state = 'cancelled')
from removed group by queue
