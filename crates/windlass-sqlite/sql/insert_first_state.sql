-- Writes the state of a job at its first claim.
insert into states (
    id, state, run_at, attempt, failures, snoozes, losses, first_started_at, started_at, worker,
    lease_until, policy, effective_max, cancel_requested
) values (?1, 1, ?2, ?3, 0, 0, 0, ?4, ?4, ?5, ?6, ?7, ?8, 0)
