//! One step on one connection: what was sent, and whether it can still be taken back.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::Object;
use tokio_postgres::{Client, Row};

use crate::error::DriverResult;
use crate::param::Param;

/// How transactions begin.
#[derive(Debug)]
pub(crate) struct BeginSql {
    pub(crate) write: String,
    pub(crate) read: String,
}

/// A connection for one step. Unless the step went well, the connection is not used again.
pub(crate) struct Session {
    object: Option<Object>,
    begin: Arc<BeginSql>,
    /// What the transaction locks when it begins.
    lock: Option<i64>,
    begun: bool,
    clean: bool,
    /// From here on a error does not mean that the step did not happen.
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
            committing,
        }
    }

    fn client(&self) -> &Client {
        self.object.as_ref().expect("it is taken only by drop")
    }

    /// Lets the transaction begin with a lock until its end, in the same round trip. Every later statement sees what those
    /// have committed who held the lock before.
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

    /// A statement of a transaction, which begins with the first one, in the same flight.
    pub(crate) async fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        self.clean = false;
        if self.begun {
            return Ok(self.client().query_typed(sql, params).await?);
        }
        self.begun = true;
        let (client, begin) = (self.client(), self.begin_text());
        let (begun, rows) = tokio::join!(
            client.batch_execute(&begin),
            client.query_typed(sql, params)
        );
        begun?;
        Ok(rows?)
    }

    /// Several statements of a transaction in one flight.
    pub(crate) async fn queries<const N: usize>(
        &mut self,
        statements: [(&str, &[Param<'_>]); N],
    ) -> DriverResult<[Vec<Row>; N]> {
        self.clean = false;
        let begin = !std::mem::replace(&mut self.begun, true);
        let (client, text) = (self.client(), self.begin_text());
        let all = statements.map(|(sql, params)| client.query_typed(sql, params));
        let begin = async {
            match begin {
                true => client.batch_execute(&text).await,
                false => Ok(()),
            }
        };
        let (begun, rows) = tokio::join!(begin, futures_util::future::join_all(all));
        begun?;
        let rows: Vec<Vec<Row>> = rows.into_iter().collect::<Result<_, _>>()?;
        Ok(rows
            .try_into()
            .unwrap_or_else(|_| unreachable!("one answer for each statement")))
    }

    /// The last statement of a transaction, with its commit in the same flight.
    pub(crate) async fn query_and_commit(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        if !self.begun {
            return self.single(sql, params).await;
        }
        self.clean = false;
        self.committing.store(true, Ordering::Relaxed);
        let client = self.client();
        let (rows, committed) = tokio::join!(
            client.query_typed(sql, params),
            client.batch_execute("commit")
        );
        let rows = rows?;
        committed?;
        self.mark_done();
        Ok(rows)
    }

    /// A statement that is a transaction of its own, in one flight.
    pub(crate) async fn single(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        self.single_with_check(sql, params, "select", &[]).await
    }

    /// The same with a second statement, which is there to fail.
    pub(crate) async fn single_with_check(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        second: &str,
        second_params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        self.clean = false;
        self.committing.store(true, Ordering::Relaxed);
        let client = self.client();
        let (begun, rows, checked, committed) = tokio::join!(
            client.batch_execute(&self.begin.write),
            client.query_typed(sql, params),
            async {
                match second_params.is_empty() {
                    true => Ok(Vec::new()),
                    false => client.query_typed(second, second_params).await,
                }
            },
            client.batch_execute("commit"),
        );
        begun?;
        // A commit of what failed rolls it back: the connection is as good as new.
        self.clean = committed.is_ok();
        let rows = rows?;
        checked?;
        committed?;
        self.mark_done();
        Ok(rows)
    }

    /// A step before the transaction, which does no harm if nothing follows.
    pub(crate) async fn before_transaction(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> DriverResult<Vec<Row>> {
        let rows = self.single(sql, params).await?;
        self.committing.store(false, Ordering::Relaxed);
        Ok(rows)
    }

    /// A statement that only reads; bounded in time like all others.
    pub(crate) async fn read(&mut self, sql: &str, params: &[Param<'_>]) -> DriverResult<Vec<Row>> {
        if self.begun {
            return self.query(sql, params).await;
        }
        self.clean = false;
        let client = self.client();
        let (begun, rows, ended) = tokio::join!(
            client.batch_execute(&self.begin.read),
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
        if !self.begun {
            return Ok(());
        }
        self.committing.store(true, Ordering::Relaxed);
        self.client().batch_execute("commit").await?;
        self.mark_done();
        Ok(())
    }

    /// The server said that it is done. What goes wrong after that does not undo it.
    fn mark_done(&mut self) {
        self.begun = false;
        self.clean = true;
    }

    /// Ends a transaction that was not to change anything.
    pub(crate) async fn roll_back(&mut self) -> DriverResult<()> {
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
            drop(Object::take(object)); // closed, not given back
        }
    }
}
