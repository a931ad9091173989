-- Records the claim of a remote worker, whose lease survives a restart of this process.  ?1 id, ?2 claim
update states set claim = ?2 where id = ?1
