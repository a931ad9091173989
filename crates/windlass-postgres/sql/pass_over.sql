-- Where a claim of some kinds can start: the first due job of a lane from the watermark on that has one of these kinds, or
-- the last due job of the lane if none has.  $1 queue, $2 lane, $3-$5 the watermark, $6 kinds, $7 true: only these kinds,
-- false: all other kinds
select rank, run_at, id
from (
    (
        select 1 as choice, rank, run_at, id from windlass.jobs
        where queue = $1 and lane = $2 and due and (rank, run_at, id) >= ($3, $4, $5) and (kind = any ($6)) = $7
        order by rank, run_at, id
        limit 1
    )
    union all
    (
        select 2, rank, run_at, id from windlass.jobs
        where queue = $1 and lane = $2 and due
        order by rank desc, run_at desc, id desc
        limit 1
    )
) as found
order by choice
limit 1
