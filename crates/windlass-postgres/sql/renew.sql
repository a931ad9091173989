-- Extends leases.  $1 ids, $2 attempts, $3 until
update windlass.jobs as job
set lease_until = $3
from unnest($1::uuid[], $2::integer[]) as lease (id, attempt)
where job.id = lease.id and job.attempt = lease.attempt
  and coalesce(job.lease_until, '-infinity') <> '-infinity'   -- a plain `is not null` let the planner walk all leases
returning job.id, job.attempt, job.cancel_requested
