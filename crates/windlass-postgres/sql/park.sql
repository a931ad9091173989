-- Parks unreadable jobs: takes them out of the indexes of claims and sweeps.  $1 ids, $2 reasons
update windlass.jobs as job
set due = false, unreadable = parked.reason
from unnest($1::uuid[], $2::text[]) as parked (id, reason)
where job.id = parked.id
