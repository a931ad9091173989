-- The claim of a worker in another process: its lease stays when this one ends.  ?1 id, ?2 claim
update states set claim = ?2 where id = ?1
