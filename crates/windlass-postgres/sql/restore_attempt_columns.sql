-- Writes the attempt count and times of revived jobs.
update windlass.jobs as job
set attempt = past.attempt, first_started_at = past.first_started_at, started_at = past.started_at, worker = past.worker
from unnest($1::uuid[], $2::integer[], $3::timestamptz[], $4::timestamptz[], $5::text[])
    as past (id, attempt, first_started_at, started_at, worker)
where job.id = past.id
