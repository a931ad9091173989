-- Takes back the leases of unreadable jobs that a claim has just taken, as if it had not, and sets the jobs aside.
--   $1 ids, $2 reasons, $3 lease until, $4 worker
-- Locks the jobs for update first, as everything does that ends an attempt (`migrations/0004_concurrency_keys.sql`).
with held as materialized (
    select id from windlass.jobs
    where id = any ($1) and lease_until = $3 and worker = $4
    order by id
    for update
)
update windlass.jobs as job
set lease_until = null, settings = null, due = false, unreadable = given.reason,
    attempt = case when attempt between 1 and 2147483646 then attempt - 1 else attempt end,
    first_started_at = case when attempt = 1 then null else first_started_at end,
    started_at = case when attempt = 1 then null else started_at end,
    worker = case when attempt = 1 then null else worker end
from unnest($1::uuid[], $2::text[]) as given (id, reason)
where job.id = given.id and job.id in (select id from held)
