-- Jobs after a cursor, newest first, with what a list can check before it reads a whole job.
-- ?1 cursor, ?6 with the last error, ?7 with the payload
select
    jobs.id, jobs.queue, jobs.kind, coalesce(states.state, 0), states.finished_at, jobs.created_at, states.fingerprint,
    states.failed_at, iif(?6, states.last_error, null), iif(?7, jobs.payload, null)
from jobs left join states on states.id = jobs.id
where jobs.id < ?1
order by jobs.id desc
