-- Writes the columns that an edit, a patch or a revival can change.  ?1 id
update jobs set queue = ?2, priority = ?3, run_at = ?4, checksum = ?5, payload = ?6, extra = ?7
where id = ?1
