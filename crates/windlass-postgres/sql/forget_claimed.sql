-- Removes jobs from the record of a claim.  $1 claim, $2 ids
update windlass.claims
set (jobs, attempts) = (
    select coalesce(array_agg(job), '{}'), coalesce(array_agg(attempt), '{}')
    from unnest(jobs, attempts) as taken (job, attempt) where job <> all ($2)
)
where id = $1
