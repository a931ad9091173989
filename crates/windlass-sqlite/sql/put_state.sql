-- Writes the whole state of a job.
insert or replace into states (
    id, state, run_at, attempt, failures, snoozes, losses, previous_delay, first_started_at, started_at, worker,
    last_error, failed_at, lease_until, policy, effective_max, cancel_requested, finished_at, result, outcome, detail,
    fingerprint, waiting_since, interventions
) values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24
)
