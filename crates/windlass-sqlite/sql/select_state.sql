-- The state of a job that was claimed, has finished, or was changed by an action.  ?1 id
select
    state, run_at, attempt, failures, snoozes, losses, previous_delay, first_started_at, started_at, worker,
    last_error, failed_at, lease_until, policy, effective_max, cancel_requested, finished_at, result, outcome, detail,
    fingerprint, waiting_since, interventions
from states where id = ?1
