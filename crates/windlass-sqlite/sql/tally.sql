insert into tallies (queue, state, count) values (?1, ?2, ?3)
on conflict (queue, state) do update set count = count + excluded.count
