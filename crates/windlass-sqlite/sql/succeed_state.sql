-- Ends the running attempt of a job with success.  ?1 id, ?2 attempt
update states set
    state = 2, losses = 0, lease_until = null, policy = null, effective_max = null, claim = null, cancel_requested = 0,
    finished_at = ?3, result = ?4, outcome = 0, detail = ?5
where id = ?1 and attempt = ?2 and state = 1
