-- Begins every transaction. With old or missing statistics, the planner would scan the whole table.
begin;
set local enable_seqscan = off;
set local jit = off;
