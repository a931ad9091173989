-- The next jobs that failed before causes were stored.  ?1 the last one that has its cause, ?2 limit
select id from states
where id > ?1 and fingerprint is null and (state >= 10 or (state < 2 and failures > 0))
order by id limit ?2
