-- Records how many jobs of a queue with a rate limit started, and deletes starts before the period.
--   $1 queue, $2 now, $3 how many, $4 start of the period
with old as (
    delete from windlass.starts where queue = $1 and at <= $4
)
insert into windlass.starts (queue, at, count) select $1, $2, $3 where $3 > 0
