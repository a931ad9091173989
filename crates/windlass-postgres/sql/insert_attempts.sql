-- Adds ended attempts to the history.
insert into windlass.attempts (job, attempt, retry_count, outcome, started_at, finished_at, worker, error, detail)
select * from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::text[],
    $9::text[]
)
on conflict do nothing
