//! One transaction on one connection.
//!
//! Round trips cost more than statements, so a session pipelines: `BEGIN` goes along with the first
//! statement, and `COMMIT` with the last one if nothing has to be read in between. If a
//! statement fails, PostgreSQL ignores the rest of the pipeline up to `COMMIT`, which then rolls
//! back. On a direct connection, a single statement needs neither: it is a transaction by itself.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::{ClientWrapper, Object};
use futures_util::future::join_all;
use tokio_postgres::Row;
use tokio_postgres::error::{Severity, SqlState};

use crate::error::{DriverError, DriverResult};
use crate::param::Param;
use crate::statement::{QueuedStatement, Ready, Route, Sql, types};

/// How transactions begin.
#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) route: Route,
    pub(crate) begin: String,
    pub(crate) begin_read: String,
    pub(crate) begin_read_in_order: String,
}

/// A connection for one transaction. If the transaction did not end cleanly, the connection is
/// closed instead of going back to the pool.
pub(crate) struct Session {
    object: Option<Object>,
    transactions: Arc<Transactions>,
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
    pub(crate) fn new(
        object: Object,
        transactions: Arc<Transactions>,
        committing: Arc<AtomicBool>,
    ) -> Self {
        Session {
            object: Some(object),
            transactions,
            lock: None,
            begun: false,
            clean: true,
            queued: Vec::new(),
            committing,
        }
    }

    fn client(&self) -> &ClientWrapper {
        self.object.as_ref().expect("only `drop` takes it")
    }

    async fn ready<'s>(&self, sql: Sql<'s>, params: &[Param<'_>]) -> DriverResult<Ready<'s>> {
        let route = self.transactions.route;
        Ok(sql.ready(self.client(), route, &types(params)).await?)
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
                self.transactions.begin
            )),
            None => Cow::Borrowed(&self.transactions.begin),
        }
    }

    /// Runs a statement whose result does not matter, in the round trip of the next statement or of
    /// the commit.
    pub(crate) fn queue<'s>(
        &mut self,
        sql: impl Into<Sql<'s>>,
        params: &[Param<'_>],
    ) -> DriverResult<()> {
        let statement = QueuedStatement::new(sql.into(), params)
            .map_err(|error| DriverError::damaged(format!("a parameter: {error}")))?;
        self.queued.push(statement);
        Ok(())
    }

    /// Runs a statement in the transaction. The first one begins it, in the same round trip.
    pub(crate) async fn query<'s>(
        &mut self,
        sql: impl Into<Sql<'s>>,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let [rows] = self.queries([(sql.into(), params)]).await?;
        Ok(rows)
    }

    /// Runs several statements in the transaction, in one round trip.
    pub(crate) async fn queries<const N: usize>(
        &mut self,
        statements: [(Sql<'_>, &[Param<'_>]); N],
    ) -> DriverResult<[Vec<Row>; N]> {
        self.clean = false;
        let queued = std::mem::take(&mut self.queued);
        let (before, mut all) = (self.all_ready(&queued).await?, Vec::with_capacity(N));
        for (sql, params) in statements {
            all.push((self.ready(sql, params).await?, params));
        }
        let begin = !std::mem::replace(&mut self.begun, true);
        let (client, text) = (self.client(), self.begin_text());
        let before = before.iter().map(|(sql, params)| sql.query(client, params));
        let all = all.iter().map(|(sql, params)| sql.query(client, params));
        let begin = async {
            if begin {
                client.batch_execute(&text).await
            } else {
                Ok(())
            }
        };
        let (begun, before, rows) = tokio::join!(begin, join_all(before), join_all(all));
        begun?;
        before.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<Vec<Row>> = rows.into_iter().collect::<Result<_, _>>()?;
        Ok(rows
            .try_into()
            .unwrap_or_else(|_| unreachable!("one result for each statement")))
    }

    /// Makes queued statements ready to send. A direct connection prepares those that it keeps.
    async fn all_ready<'q>(
        &self,
        queued: &'q [QueuedStatement],
    ) -> DriverResult<Vec<(Ready<'q>, Vec<Param<'q>>)>> {
        let mut all = Vec::with_capacity(queued.len());
        for statement in queued {
            let params = statement.params();
            all.push((self.ready(statement.sql(), &params).await?, params));
        }
        Ok(all)
    }

    /// Runs the last statement of the transaction and commits, in one round trip.
    pub(crate) async fn query_and_commit<'s>(
        &mut self,
        sql: impl Into<Sql<'s>>,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        if !self.begun && self.queued.is_empty() && self.lock.is_none() {
            return self.single(sql, params).await;
        }
        if !self.begun {
            self.queries([]).await?;
        }
        self.queue(sql, params)?;
        let rows = self.commit_queued().await?;
        Ok(rows.into_iter().next_back().unwrap_or_default())
    }

    /// Runs the queued statements and commits, in one round trip.
    async fn commit_queued(&mut self) -> DriverResult<Vec<Vec<Row>>> {
        self.clean = false;
        let queued = std::mem::take(&mut self.queued);
        let statements = self.all_ready(&queued).await?;
        self.committing.store(true, Ordering::Relaxed);
        let client = self.client();
        let statements = statements
            .iter()
            .map(|(sql, params)| sql.query(client, params));
        let (rows, committed) = tokio::join!(join_all(statements), client.batch_execute("commit"));
        let rows: Result<Vec<Vec<Row>>, _> = rows.into_iter().collect();
        // `COMMIT` of a failed transaction rolls it back, so the connection can be used again.
        self.clean = committed.is_ok() && !has_lost_statement(&rows);
        if committed.is_ok() && rows.is_err() {
            self.committing.store(false, Ordering::Relaxed);
        }
        let rows = rows?;
        committed?;
        self.mark_done();
        Ok(rows)
    }

    /// Runs a statement in a transaction of its own, in one round trip.
    pub(crate) async fn single<'s>(
        &mut self,
        sql: impl Into<Sql<'s>>,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        debug_assert!(!self.begun && self.queued.is_empty() && self.lock.is_none());
        self.clean = false;
        let ready = self.ready(sql.into(), params).await?;
        self.committing.store(true, Ordering::Relaxed);
        let client = self.client();
        if self.transactions.route == Route::Direct {
            // A statement without `begin` is a transaction. Its result comes after the commit.
            let rows = ready.query(client, params).await;
            let is_rolled_back = rows.as_ref().is_err_and(is_refused);
            self.clean = rows.is_ok() || is_rolled_back && !has_lost_statement(&rows);
            if is_rolled_back {
                self.committing.store(false, Ordering::Relaxed);
            }
            return Ok(rows?);
        }
        let (begun, rows, committed) = tokio::join!(
            client.batch_execute(&self.transactions.begin),
            ready.query(client, params),
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
        let transactions = Arc::clone(&self.transactions);
        self.read_after(&transactions.begin_read, sql, params).await
    }

    /// Like [`read`](Self::read), for the first rows in the order of an index. With old or missing
    /// statistics, the planner would read and sort the whole table.
    pub(crate) async fn read_in_order(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let transactions = Arc::clone(&self.transactions);
        self.read_after(&transactions.begin_read_in_order, sql, params)
            .await
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

/// Whether the server no longer knows a statement that this connection has prepared. Then the
/// connection must not be used again.
fn has_lost_statement<T>(result: &Result<T, tokio_postgres::Error>) -> bool {
    let error = result.as_ref().err().and_then(tokio_postgres::Error::code);
    error.is_some_and(|code| *code == SqlState::INVALID_SQL_STATEMENT_NAME)
}

/// Whether the server answered with an error, rolled back, and goes on with this connection.
fn is_refused(error: &tokio_postgres::Error) -> bool {
    let severity = error
        .as_db_error()
        .and_then(|error| error.parsed_severity());
    severity == Some(Severity::Error)
}
