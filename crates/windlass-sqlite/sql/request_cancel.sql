-- Requests that the running attempt of a job stops.  ?1 id, ?2 attempt, ?3 interventions
update states set cancel_requested = 1, interventions = ?3 where id = ?1 and attempt = ?2 and state = 1
