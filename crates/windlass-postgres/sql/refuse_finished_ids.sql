-- Fails (division by zero) if one of these ids belongs to a finished job. A statement of its own after the insert: its
-- snapshot has jobs that finished while the insert waited for them.  $1 ids
select 1 / (not exists (
    select from windlass.finished where id = any ($1) union all select from windlass.dead where id = any ($1)
))::integer
