-- Takes the leases of unreadable jobs back that a claim has just taken, as if it had not, and parks the jobs.
--   $1 ids, $2 reasons, $3 lease until, $4 worker
update windlass.jobs as job
set lease_until = null, settings = null, due = false, unreadable = given.reason,
    attempt = case when attempt between 1 and 2147483646 then attempt - 1 else attempt end,
    first_started_at = case when attempt = 1 then null else first_started_at end,
    started_at = case when attempt = 1 then null else started_at end,
    worker = case when attempt = 1 then null else worker end
from unnest($1::uuid[], $2::text[]) as given (id, reason)
where job.id = given.id and job.lease_until = $3 and job.worker = $4
