//! Statements on their way to the server.
//!
//! Most statements have no name: the server parses and plans them for each use. This also works
//! behind a transaction pooler, where the next transaction may run in another server process, which
//! does not know the names of this one. On a connection that leads directly to one server process,
//! frequent calls are prepared once.

use std::error::Error;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row, Statement};

use crate::param::Param;

/// The text of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sql<'a> {
    /// Parsed and planned for each use.
    Once(&'a str),
    /// A frequent call of a function. A direct connection prepares it once and keeps it.
    Kept(&'a str),
}

impl<'a> From<&'a str> for Sql<'a> {
    fn from(text: &'a str) -> Self {
        Sql::Once(text)
    }
}

impl<'a> From<&'a String> for Sql<'a> {
    fn from(text: &'a String) -> Self {
        Sql::Once(text)
    }
}

/// Where the connections lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Each to one server process.
    Direct,
    /// To a pooler, which may use another server process for each transaction.
    Pooled,
}

/// A statement that can be sent without another round trip.
pub(crate) enum Ready<'a> {
    Text(&'a str),
    Prepared(Statement),
}

impl<'a> Sql<'a> {
    /// Prepares a kept statement, unless the connection knows it already. Must be awaited before
    /// any statement of the same pipeline is sent: the server runs them in the order of arrival.
    pub(crate) async fn ready(
        self,
        client: &ClientWrapper,
        route: Route,
        types: &[Type],
    ) -> Result<Ready<'a>, tokio_postgres::Error> {
        match (self, route) {
            (Sql::Kept(text), Route::Direct) => {
                let statement = client.prepare_typed_cached(text, types).await?;
                Ok(Ready::Prepared(statement))
            }
            (Sql::Once(text) | Sql::Kept(text), _) => Ok(Ready::Text(text)),
        }
    }
}

impl Ready<'_> {
    /// Sends the statement at the first poll.
    pub(crate) async fn query(
        &self,
        client: &ClientWrapper,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self {
            Ready::Text(text) => client.query_typed(text, params).await,
            Ready::Prepared(statement) => {
                let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
                client.query(statement, &values).await
            }
        }
    }
}

/// Returns the types of parameters.
pub(crate) fn types(params: &[Param<'_>]) -> Vec<Type> {
    params
        .iter()
        .map(|(_, sql_type)| sql_type.clone())
        .collect()
}

/// A statement with its encoded parameters, to be sent later.
#[derive(Debug)]
pub(crate) struct QueuedStatement {
    text: String,
    is_kept: bool,
    params: Vec<(Encoded, Type)>,
}

/// A parameter in the form in which it is sent; `None` for `null`.
#[derive(Debug)]
struct Encoded(Option<BytesMut>);

impl QueuedStatement {
    pub(crate) fn new(
        sql: Sql<'_>,
        params: &[Param<'_>],
    ) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let mut encoded = Vec::with_capacity(params.len());
        for (value, sql_type) in params {
            let mut bytes = BytesMut::new();
            let is_null = value.to_sql_checked(sql_type, &mut bytes)?;
            let bytes = matches!(is_null, IsNull::No).then_some(bytes);
            encoded.push((Encoded(bytes), sql_type.clone()));
        }
        let (Sql::Once(text) | Sql::Kept(text)) = sql;
        Ok(QueuedStatement {
            text: text.to_owned(),
            is_kept: matches!(sql, Sql::Kept(_)),
            params: encoded,
        })
    }

    pub(crate) fn sql(&self) -> Sql<'_> {
        match self.is_kept {
            true => Sql::Kept(&self.text),
            false => Sql::Once(&self.text),
        }
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        let params = self.params.iter();
        params
            .map(|(value, sql_type)| (value as &(dyn ToSql + Sync), sql_type.clone()))
            .collect()
    }
}

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(bytes) = &self.0 else {
            return Ok(IsNull::Yes);
        };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true // the value was encoded for its type
    }

    to_sql_checked!();
}
