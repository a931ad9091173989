-- Lets one transaction at a time add groups to a queue and kind, so that there are never too many.  $1 locks, in order
select pg_advisory_xact_lock(number) from unnest($1::bigint[]) as given (number)
