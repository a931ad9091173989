-- Ends the running attempt of a job.  ?1 id, ?2 attempt
update states set
    state = ?3, run_at = ?4, failures = ?5, snoozes = ?6, losses = ?7, previous_delay = ?8, last_error = ?9,
    failed_at = ?10, lease_until = null, policy = null, effective_max = null, claim = null, cancel_requested = 0,
    finished_at = ?11, result = ?12, outcome = ?13, detail = ?14, fingerprint = ?15, waiting_since = ?16,
    interventions = ?17
where id = ?1 and attempt = ?2 and state = 1
