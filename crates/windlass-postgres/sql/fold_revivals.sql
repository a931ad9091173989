-- Adds up to $1 changes to the tallies of replays. Returns how many.
with taken as (
    delete from windlass.revival_changes where ctid = any (array(select ctid from windlass.revival_changes limit $1))
    returning *
), folded as (
    insert into windlass.revival_tallies as tally (replay, count, jobs)
    select replay, count, sum(jobs) from taken group by replay, count order by replay, count
    on conflict (replay, count) do update set jobs = tally.jobs + excluded.jobs
)
select count(*) from taken
