-- Stores the retry settings of a claim, and returns their number. The update changes nothing: it makes an existing row
-- return its number.  $1 settings as JSON
insert into windlass.settings (json) values ($1)
on conflict (md5(json)) do update set json = excluded.json
returning id
