-- Appends changes of the tallies of replays.
insert into windlass.revival_changes (replay, count, jobs) select * from unnest($1::uuid[], $2::text[], $3::bigint[])
