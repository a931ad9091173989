-- Stores a new job. Does nothing if the id is already taken.
insert into jobs (id, queue, kind, priority, run_at, created_at, checksum, payload, extra)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict do nothing
