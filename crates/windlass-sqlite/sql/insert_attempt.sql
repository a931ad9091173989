-- Adds an ended attempt to the history.
insert or replace into attempts (id, attempt, retry_count, outcome, started_at, finished_at, worker, error, detail)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
