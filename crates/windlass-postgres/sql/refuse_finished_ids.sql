-- Fails (division by zero) if one of these ids is that of a job that is over. After the insert, and by a statement of its own:
-- it sees a job that ended while the insert waited for it.  $1 ids
select 1 / (not exists (
    select from windlass.finished where id = any ($1) union all select from windlass.dead where id = any ($1)
))::integer
