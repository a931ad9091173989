//! One transaction on one connection.
//!
//! Round trips cost more than statements, so a session pipelines: `BEGIN` goes along with the first
//! statement, and `COMMIT` with the last one where nothing has to be read in between. If a
//! statement fails, PostgreSQL ignores the rest of the pipeline up to `COMMIT`, which then rolls
//! back.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::{Client, Row};

use crate::error::{DriverError, DriverResult};
use crate::param::{Param, QueuedStatement};

/// The SQL that begins a transaction.
#[derive(Debug)]
pub(crate) struct BeginSql {
    pub(crate) write: String,
    pub(crate) read: String,
    pub(crate) read_in_order: String,
}

/// A connection for one transaction. If the transaction did not end cleanly, the connection is
/// closed instead of going back to the pool.
pub(crate) struct Session {
    object: Option<Object>,
    begin: Arc<BeginSql>,
    /// The advisory lock that the transaction begins with.
    lock: Option<i64>,
    begun: bool,
    clean: bool,
    /// Statements that go along with the next one.
    queued: Vec<QueuedStatement>,
    /// Set when `COMMIT` is sent. From then on, an error does not mean that nothing happened.
    committing: Arc<AtomicBool>,
}

impl Session {
    pub(crate) fn new(object: Object, begin: Arc<BeginSql>, committing: Arc<AtomicBool>) -> Self {
        Session {
            object: Some(object),
            begin,
            lock: None,
            begun: false,
            clean: true,
            queued: Vec::new(),
            committing,
        }
    }

    fn client(&self) -> &Client {
        self.object.as_ref().expect("only `drop` takes it")
    }

    /// Makes the transaction begin with an advisory lock, in the same round trip. All later
    /// statements see what previous holders of the lock have committed.
    pub(crate) fn lock_first(&mut self, lock: i64) {
        self.lock = Some(lock);
    }

    fn begin_text(&self) -> Cow<'_, str> {
        match self.lock {
            Some(lock) => Cow::Owned(format!(
                "{}; select pg_advisory_xact_lock({lock})",
                self.begin.write
            )),
            None => Cow::Borrowed(&self.begin.write),
        }
    }

    /// Runs a statement whose result does not matter, in the round trip of the next statement or of
    /// the commit.
    pub(crate) fn queue(&mut self, sql: &str, params: &[Param<'_>]) -> DriverResult<()> {
        let statement = QueuedStatement::new(sql, params)
            .map_err(|error| DriverError::damaged(format!("a parameter: {error}")))?;
        self.queued.push(statement);
        Ok(())
    }

    /// Runs a statement in the transaction. The first one begins it, in the same round trip.
    pub(crate) async fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let [rows] = self.queries([(sql, params)]).await?;
        Ok(rows)
    }

    /// Runs several statements in the transaction, in one round trip.
    pub(crate) async fn queries<const N: usize>(
        &mut self,
        statements: [(&str, &[Param<'_>]); N],
    ) -> DriverResult<[Vec<Row>; N]> {
        self.clean = false;
        let begin = !std::mem::replace(&mut self.begun, true);
        let queued = std::mem::take(&mut self.queued);
        let (client, text) = (self.client(), self.begin_text());
        let before = queued.iter().map(|statement| statement.run(client));
        let all = statements.map(|(sql, params)| client.query_typed(sql, params));
        let begin = async {
            if begin {
                client.batch_execute(&text).await
            } else {
                Ok(())
            }
        };
        let (begun, before, rows) = tokio::join!(begin, join_all(before), join_all(all));
        begun?;
        before.into_iter().collect::<Result<(), _>>()?;
        let rows: Vec<Vec<Row>> = rows.into_iter().collect::<Result<_, _>>()?;
        Ok(rows
            .try_into()
            .unwrap_or_else(|_| unreachable!("one result for each statement")))
    }

    /// Runs the last statement of the transaction and commits, in one round trip.
    pub(crate) async fn query_and_commit(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        if !self.begun {
            return self.single(sql, params).await;
        }
        self.queue(sql, params)?;
        let rows = self.commit_queued().await?;
        Ok(rows.into_iter().next_back().unwrap_or_default())
    }

    /// Runs the queued statements and commits, in one round trip.
    async fn commit_queued(&mut self) -> DriverResult<Vec<Vec<Row>>> {
        self.clean = false;
        self.committing.store(true, Ordering::Relaxed);
        let queued = std::mem::take(&mut self.queued);
        let client = self.client();
        let statements = queued.iter().map(|statement| statement.query(client));
        let (rows, committed) = tokio::join!(join_all(statements), client.batch_execute("commit"));
        let rows: Result<Vec<Vec<Row>>, _> = rows.into_iter().collect();
        // `COMMIT` of a failed transaction rolls it back, so the connection can be used again.
        self.clean = committed.is_ok();
        if committed.is_ok() && rows.is_err() {
            self.committing.store(false, Ordering::Relaxed);
        }
        let rows = rows?;
        committed?;
        self.mark_done();
        Ok(rows)
    }

    /// Runs a statement in a transaction of its own, in one round trip.
    pub(crate) async fn single(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        self.clean = false;
        self.committing.store(true, Ordering::Relaxed);
        let client = self.client();
        let (begun, rows, committed) = tokio::join!(
            client.batch_execute(&self.begin.write),
            client.query_typed(sql, params),
            client.batch_execute("commit"),
        );
        begun?;
        // `COMMIT` of a failed transaction rolls it back, so the connection can be used again.
        self.clean = committed.is_ok();
        if committed.is_ok() && rows.is_err() {
            self.committing.store(false, Ordering::Relaxed);
        }
        let rows = rows?;
        committed?;
        self.mark_done();
        Ok(rows)
    }

    /// Runs a statement in a transaction of its own before the actual one. It must be harmless if
    /// the actual one does not follow, so its commit does not make the result indeterminate.
    pub(crate) async fn before_transaction(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let rows = self.single(sql, params).await?;
        self.committing.store(false, Ordering::Relaxed);
        Ok(rows)
    }

    /// Runs a statement that only reads, in a read-only transaction unless one is open.
    pub(crate) async fn read(&mut self, sql: &str, params: &[Param<'_>]) -> DriverResult<Vec<Row>> {
        let begin = Arc::clone(&self.begin);
        self.read_after(&begin.read, sql, params).await
    }

    /// Like [`read`](Self::read), for the first rows in the order of an index. With old or missing
    /// statistics, the planner would read and sort the whole table.
    pub(crate) async fn read_in_order(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let begin = Arc::clone(&self.begin);
        self.read_after(&begin.read_in_order, sql, params).await
    }

    async fn read_after(
        &mut self,
        begin: &str,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        if self.begun {
            return self.query(sql, params).await;
        }
        self.clean = false;
        let client = self.client();
        let (begun, rows, ended) = tokio::join!(
            client.batch_execute(begin),
            client.query_typed(sql, params),
            client.batch_execute("commit"),
        );
        begun?;
        let rows = rows?;
        ended?;
        self.clean = true;
        Ok(rows)
    }

    pub(crate) async fn commit(&mut self) -> DriverResult<()> {
        if !self.begun && self.queued.is_empty() {
            return Ok(());
        }
        if !self.begun {
            self.queries([]).await?;
        }
        self.commit_queued().await?;
        Ok(())
    }

    /// Marks the transaction as ended by the server.
    fn mark_done(&mut self) {
        self.begun = false;
        self.clean = true;
    }

    /// Rolls the transaction back.
    pub(crate) async fn roll_back(&mut self) -> DriverResult<()> {
        self.queued.clear();
        if self.begun {
            self.client().batch_execute("rollback").await?;
            self.mark_done();
            self.committing.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(object) = self.object.take()
            && !self.clean
        {
            drop(Object::take(object)); // closes it instead of returning it to the pool
        }
    }
}
