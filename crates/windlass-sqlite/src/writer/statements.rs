//! The statements that every job needs, prepared once.
//!
//! Even SQLite's statement cache costs a look-up by text for each use; these skip it.

use rusqlite::{Connection, PrepFlags, Statement};

use crate::error::DriverResult;

pub(crate) struct Statements<'c> {
    pub(crate) begin: Statement<'c>,
    pub(crate) commit: Statement<'c>,
    pub(crate) insert_job: Statement<'c>,
    pub(crate) insert_first_state: Statement<'c>,
    pub(crate) succeed_state: Statement<'c>,
}

impl<'c> Statements<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> DriverResult<Self> {
        let prepare =
            |sql| connection.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT);
        Ok(Statements {
            begin: prepare("begin immediate")?,
            commit: prepare("commit")?,
            insert_job: prepare(include_str!("../../sql/insert_job.sql"))?,
            insert_first_state: prepare(include_str!("../../sql/insert_first_state.sql"))?,
            succeed_state: prepare(include_str!("../../sql/succeed_state.sql"))?,
        })
    }
}
