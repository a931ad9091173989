//! Derives the body, the query and the response of a route from the signature of its handler, so
//! that the API description cannot differ from the code.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{HeaderName, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::{Body, Checks, Param, params, read_body, read_body_with, read_query};

use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// Generates the schema of a type. Adds nested types to the definitions of the generator.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send>>;
pub(crate) type Handler = Arc<dyn Fn(Call) -> Answering + Send + Sync>;

/// What a handler takes in addition to the call, and what it returns.
#[derive(Default)]
pub(crate) struct Signature {
    /// The name and the schema of its body.
    pub(crate) body: Option<(String, SchemaOf)>,
    /// The parameters of its query.
    pub(crate) query: Vec<Param>,
    /// The schema of the response. `None` for a response without a body.
    pub(crate) returns: Option<SchemaOf>,
}

impl Signature {
    /// Declares the type of the body.
    pub(crate) fn takes<B: JsonSchema>(&mut self) {
        let name = B::schema_name().into_owned();
        self.body = Some((name, |generator| generator.subschema_for::<B>()));
    }
}

/// An async function that handles requests: `async fn(Call, …) -> Result<Reply<T>, Problem>`.
pub(crate) trait Endpoint<Args> {
    /// The function as the router calls it, and its signature.
    fn into_parts(self) -> (Handler, Signature);
}

/// An argument of a handler that is read from the request.
pub(crate) trait Extract: Sized + Send {
    /// Adds the argument to the signature. Returns the query parameters that it reads.
    fn declare(signature: &mut Signature) -> Vec<Param>;
    /// Reads the argument from the request. `params` is what `declare` returned.
    fn extract(call: &Call, params: &[Param]) -> Result<Self, Problem>;
}

/// A checked JSON body. A missing body is read as an empty object.
pub(crate) struct JsonBody<B: Body>(pub(crate) B::Checked);

impl<B: Body> Extract for JsonBody<B> {
    fn declare(signature: &mut Signature) -> Vec<Param> {
        signature.takes::<B>();
        Vec::new()
    }

    fn extract(call: &Call, _: &[Param]) -> Result<Self, Problem> {
        Ok(JsonBody(read_body::<B>(call.text()?, call.now)?))
    }
}

/// A JSON body that its handler checks against other data, such as the path or stored data.
pub(crate) struct UncheckedBody<B>(PhantomData<fn() -> B>);

impl<B: DeserializeOwned> UncheckedBody<B> {
    /// Reads the body and reports all problems: those of its fields and those that `check` finds.
    pub(crate) fn check<T>(
        &self,
        call: &Call,
        check: impl FnOnce(B, &mut Checks) -> Option<T>,
    ) -> Result<T, Problem> {
        Ok(read_body_with(call.text()?, call.now, check)?)
    }
}

impl<B: DeserializeOwned + JsonSchema> Extract for UncheckedBody<B> {
    fn declare(signature: &mut Signature) -> Vec<Param> {
        signature.takes::<B>();
        Vec::new()
    }

    fn extract(_: &Call, _: &[Param]) -> Result<Self, Problem> {
        Ok(UncheckedBody(PhantomData))
    }
}

/// Checked query parameters.
pub(crate) struct Params<Q: Body>(pub(crate) Q::Checked);

impl<Q: Body> Extract for Params<Q> {
    fn declare(signature: &mut Signature) -> Vec<Param> {
        let params = params::<Q>();
        signature.query.extend(params.iter().cloned());
        params
    }

    fn extract(call: &Call, params: &[Param]) -> Result<Self, Problem> {
        let read = read_query::<Q>(&call.query, params, call.now);
        Ok(Params(
            read.map_err(|problems| Problem::invalid(&problems))?,
        ))
    }
}

/// A successful response with a body of type `T`, or without a body if `T` is `()`.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    body: T,
    status: StatusCode,
    headers: Vec<(HeaderName, String)>,
}

impl<T> Reply<T> {
    /// A response with status 200.
    pub(crate) fn ok(body: T) -> Self {
        Reply {
            body,
            status: StatusCode::OK,
            headers: Vec::new(),
        }
    }

    /// A response with status 201.
    pub(crate) fn created(body: T) -> Self {
        Reply::ok(body).status(StatusCode::CREATED)
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Adds the URL of the created resource.
    pub(crate) fn location(self, path: impl Into<String>) -> Self {
        self.header(axum::http::header::LOCATION, path)
    }

    /// Adds the URL of the next page.
    pub(crate) fn next(self, link: Option<String>) -> Self {
        match link {
            Some(link) => self.header(axum::http::header::LINK, format!("<{link}>; rel=\"next\"")),
            None => self,
        }
    }
}

impl Reply<()> {
    /// A response with status 204.
    pub(crate) fn empty() -> Self {
        Reply::ok(()).status(StatusCode::NO_CONTENT)
    }
}

/// A response that the handler serialized itself. Its body has the schema of `T`.
pub(crate) struct RawReply<T> {
    answer: Answer,
    shape: PhantomData<fn() -> T>,
}

impl<T> From<Answer> for RawReply<T> {
    fn from(answer: Answer) -> Self {
        RawReply {
            answer,
            shape: PhantomData,
        }
    }
}

/// What a handler returns: a [`Reply`] or a [`RawReply`].
pub(crate) trait Returns: Send {
    /// The type of the body.
    type Shape: JsonSchema + 'static;
    /// Converts it to the response that the server sends.
    fn into_answer(self) -> Result<Answer, Problem>;
}

impl<T: Serialize + JsonSchema + Send + 'static> Returns for Reply<T> {
    type Shape = T;

    fn into_answer(self) -> Result<Answer, Problem> {
        let answer = match self.status {
            StatusCode::NO_CONTENT => Answer::empty(),
            status => Answer::json(status, &self.body)?,
        };
        let headers = self.headers.into_iter();
        Ok(headers.fold(answer, |answer, (name, value)| answer.header(name, &value)))
    }
}

impl<T: JsonSchema + 'static> Returns for RawReply<T> {
    type Shape = T;

    fn into_answer(self) -> Result<Answer, Problem> {
        Ok(self.answer)
    }
}

fn returns<R: Returns>(signature: &mut Signature) {
    if R::Shape::schema_name() != <()>::schema_name() {
        signature.returns = Some(|generator| generator.subschema_for::<R::Shape>());
    }
}

macro_rules! endpoint {
    ($($arg:ident),*) => {
        impl<F, A, R, $($arg),*> Endpoint<(R, $($arg,)*)> for F
        where
            F: Fn(Call, $($arg),*) -> A + Send + Sync + 'static,
            A: Future<Output = Result<R, Problem>> + Send + 'static,
            R: Returns + 'static,
            $($arg: Extract + 'static,)*
        {
            #[allow(non_snake_case, reason = "an argument is named as its type; some have none")]
            fn into_parts(self) -> (Handler, Signature) {
                let mut signature = Signature::default();
                // Each argument reads its own part of the query.
                $(let $arg = $arg::declare(&mut signature);)*
                returns::<R>(&mut signature);
                let (endpoint, queries) = (Arc::new(self), Arc::new(($($arg,)*)));
                let handler = move |call: Call| -> Answering {
                    let (endpoint, queries) = (Arc::clone(&endpoint), Arc::clone(&queries));
                    Box::pin(async move {
                        let ($($arg,)*) = &*queries;
                        $(let $arg = $arg::extract(&call, $arg)?;)*
                        endpoint(call, $($arg),*).await?.into_answer()
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
