//! What a handler takes and returns, read off its signature: so a route cannot describe another
//! body, query or answer than it has.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{HeaderName, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use windlass_api::{Body, Param, body_text, params, read_body, read_query};

use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// Makes the schema of a type, with the types within it as definitions of the generator.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send>>;
pub(crate) type Handler = Arc<dyn Fn(Call) -> Answering + Send + Sync>;

/// What a handler takes besides the call, and what it returns.
#[derive(Default)]
pub(crate) struct Signature {
    /// The name and the schema of its body.
    pub(crate) body: Option<(String, SchemaOf)>,
    /// The parameters of its query.
    pub(crate) query: Vec<Param>,
    /// What it returns; nothing for an answer without a body.
    pub(crate) returns: Option<SchemaOf>,
}

/// An async function that answers requests: `async fn(Call, …) -> Result<Reply<T>, Problem>`.
pub(crate) trait Endpoint<Args> {
    /// The function as the router calls it, and its signature.
    fn into_parts(self) -> (Handler, Signature);
}

/// Something that a handler takes besides the call.
pub(crate) trait Extract: Sized + Send {
    /// Adds itself to the signature.
    fn declare(signature: &mut Signature);
    /// Reads itself from the request; `query` are the parameters of the route.
    fn extract(call: &Call, query: &[Param]) -> Result<Self, Problem>;
}

/// A body, checked. A request without one has an empty object.
pub(crate) struct Read<B: Body>(pub(crate) B::Checked);

impl<B: Body> Extract for Read<B> {
    fn declare(signature: &mut Signature) {
        let name = B::schema_name().into_owned();
        signature.body = Some((name, |generator| generator.subschema_for::<B>()));
    }

    fn extract(call: &Call, _: &[Param]) -> Result<Self, Problem> {
        let text = if call.body.is_empty() {
            "{}"
        } else {
            body_text(&call.body)?
        };
        Ok(Read(read_body::<B>(text, call.now)?))
    }
}

/// Parameters of the query, checked.
pub(crate) struct Params<Q: Body>(pub(crate) Q::Checked);

impl<Q: Body> Extract for Params<Q> {
    fn declare(signature: &mut Signature) {
        signature.query.extend(params::<Q>());
    }

    fn extract(call: &Call, query: &[Param]) -> Result<Self, Problem> {
        let read = read_query::<Q>(&call.query, query, call.now);
        Ok(Params(
            read.map_err(|problems| Problem::invalid(&problems))?,
        ))
    }
}

/// A successful answer with a body of type `T`, or without one where `T` is `()`.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    body: T,
    status: StatusCode,
    headers: Vec<(HeaderName, String)>,
}

impl<T> Reply<T> {
    /// An answer with status 200.
    pub(crate) fn ok(body: T) -> Self {
        Reply {
            body,
            status: StatusCode::OK,
            headers: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Where the next page is.
    pub(crate) fn next(self, link: Option<String>) -> Self {
        match link {
            Some(link) => self.header(axum::http::header::LINK, format!("<{link}>; rel=\"next\"")),
            None => self,
        }
    }
}

impl<T: Serialize> TryFrom<Reply<T>> for Answer {
    type Error = Problem;

    fn try_from(reply: Reply<T>) -> Result<Self, Problem> {
        let answer = match reply.status {
            StatusCode::NO_CONTENT => Answer::empty(),
            status => Answer::json(status, &reply.body)?,
        };
        let headers = reply.headers.into_iter();
        Ok(headers.fold(answer, |answer, (name, value)| answer.header(name, &value)))
    }
}

fn returns<T: JsonSchema>(signature: &mut Signature) {
    if T::schema_name() != <()>::schema_name() {
        signature.returns = Some(|generator| generator.subschema_for::<T>());
    }
}

macro_rules! endpoint {
    ($($arg:ident),*) => {
        impl<F, A, T, $($arg),*> Endpoint<(T, $($arg,)*)> for F
        where
            F: Fn(Call, $($arg),*) -> A + Send + Sync + 'static,
            A: Future<Output = Result<Reply<T>, Problem>> + Send + 'static,
            T: Serialize + JsonSchema + Send + 'static,
            $($arg: Extract + 'static,)*
        {
            fn into_parts(self) -> (Handler, Signature) {
                let mut signature = Signature::default();
                $($arg::declare(&mut signature);)*
                returns::<T>(&mut signature);
                let (endpoint, query) = (Arc::new(self), Arc::new(signature.query.clone()));
                let handler = move |call: Call| -> Answering {
                    let (endpoint, query) = (Arc::clone(&endpoint), Arc::clone(&query));
                    let _ = &query; // a handler without arguments needs none
                    Box::pin(async move {
                        $(
                            #[expect(non_snake_case, reason = "named as its type")]
                            let $arg = $arg::extract(&call, &query)?;
                        )*
                        endpoint(call, $($arg),*).await?.try_into()
                    })
                };
                (Arc::new(handler), signature)
            }
        }
    };
}

endpoint!();
endpoint!(First);
endpoint!(First, Second);
endpoint!(First, Second, Third);
