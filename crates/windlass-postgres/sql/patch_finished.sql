-- Writes what a patch changes in finished jobs, which this transaction has locked, and counts jobs that change queue.
with now as (
    select * from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::bigint[], $7::text[])
        as now (id, queue, rank, payload, extra, fingerprint, interventions)
), before as materialized (
    select id, queue from /* table */ where id = any ($1)
), written as (
    update /* table */ as job
    set queue = now.queue, rank = now.rank, payload = now.payload, extra = now.extra, fingerprint = now.fingerprint,
        interventions = now.interventions
    from now where job.id = now.id
    returning job.id, job.queue, job.state
), change as (
    select before.queue, written.state, -1 as count from before join written using (id)
    where before.queue <> written.queue
    union all
    select written.queue, written.state, 1 from before join written using (id)
    where before.queue <> written.queue
)
insert into windlass.queue_changes (queue, dead, cancelled)
select
    queue, coalesce(sum(count) filter (where state = 'dead'), 0),
    coalesce(sum(count) filter (where state = 'cancelled'), 0)
from change group by queue
