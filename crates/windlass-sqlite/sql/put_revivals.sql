-- Writes the results of the jobs that a replay revived.
insert or replace into revivals (
    replay, pending, recovered, failed_again, gone, first_succeeded, first_failed, first_failed_alike
) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
