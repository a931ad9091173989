-- The jobs in a range of ids, in one scan.  ?1 first, ?2 last
select queue, kind, priority, run_at, created_at, checksum, payload, extra, id
from jobs where id between ?1 and ?2 order by id
