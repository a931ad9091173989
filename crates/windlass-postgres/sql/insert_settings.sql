-- The number of what a claim says about retrying.  $1 as JSON
insert into windlass.settings (json) values ($1)
on conflict (md5(json)) do update set json = excluded.json
returning id
