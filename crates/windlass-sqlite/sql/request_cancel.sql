-- Requests that the running attempt of a job stops.  ?1 id, ?2 attempt
update states set cancel_requested = 1 where id = ?1 and attempt = ?2 and state = 1
