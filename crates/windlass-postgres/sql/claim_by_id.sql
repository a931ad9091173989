-- Takes these jobs, as far as they still wait.
--   $1 ids, $2 now, $3 claim, $4 lease, $5 settings, $6 worker, $7 queue
-- A job at the last number that an attempt can have keeps it; the driver does not read such a row, and parks it.
with taken as (
    update windlass.jobs
    set due = false, lease_until = $4, settings = $5, worker = $6, attempt = attempt + (attempt < 2147483647)::integer, started_at = $2,
        first_started_at = coalesce(first_started_at, $2), cancel_requested = false
    where id = any (array(
        select id from windlass.jobs where id = any ($1) and due and queue = $7 and run_at <= $2 order by id for update skip locked
    ))
    returning *
), noted as (
    insert into windlass.claims (id, at, jobs, attempts)
    select $3, $2, array_agg(id), array_agg(attempt) from taken having count(*) > 0
    on conflict (id) do nothing
)
select /* columns */ from taken
