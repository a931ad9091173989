-- A job as it was enqueued.  ?1 id
select queue, kind, priority, run_at, created_at, checksum, payload, extra from jobs where id = ?1
