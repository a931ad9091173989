-- Extends a lease.  ?1 id, ?2 attempt, ?3 until
update states set lease_until = ?3 where id = ?1 and attempt = ?2 and state = 1
