-- Adds to the number of finished jobs.  ?1 queue, ?2 state, ?3 count
insert into tallies (queue, state, count) values (?1, ?2, ?3)
on conflict (queue, state) do update set count = count + excluded.count
