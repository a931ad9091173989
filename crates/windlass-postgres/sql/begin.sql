-- How every transaction begins. With statistics that are old or missing the planner would walk the whole table.
begin;
set local enable_seqscan = off;
set local jit = off;
