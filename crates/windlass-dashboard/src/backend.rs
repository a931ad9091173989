//! What the dashboard needs from the server: who is visiting, and the REST API as that person.

use std::fmt;

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use windlass_api::Scope;
use windlass_core::Timestamp;

/// The server behind the pages.
///
/// The dashboard writes nothing itself. Every read and every action is a REST route that runs with
/// the scopes of the visitor, so the checks and the audit log exist once.
#[async_trait::async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Returns what every page shows about the server.
    fn about(&self) -> &About;

    /// Waits until the server stops. Open streams end then.
    async fn stopped(&self);

    /// Returns who sent a request.
    async fn visitor(&self, request: &Parts) -> Result<Visitor, Refusal>;

    /// Refuses a changing request that a page of another site may have sent. The token was
    /// compared already; this checks what the browser says about the origin.
    fn check_origin(&self, request: &Parts) -> Result<(), Refusal>;

    /// Starts a session. Returns the cookie to set.
    async fn sign_in(
        &self,
        request: &Parts,
        credential: Credential<'_>,
    ) -> Result<HeaderValue, Refusal>;

    /// Ends the session of a request. Returns the cookie to set.
    async fn sign_out(&self, request: &Parts) -> HeaderValue;

    /// Calls the REST API as `identity`.
    async fn call(&self, identity: &Identity, call: Call) -> Answer;
}

/// What someone signs in with.
#[derive(Clone, Copy)]
pub enum Credential<'a> {
    /// An API key.
    Key(&'a str),
    /// A single-use link, which the person confirmed.
    Link(&'a str),
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// What every page shows about the server.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The version of the server.
    pub version: String,
    /// The store in words: `SQLite`, `PostgreSQL` or `memory`.
    pub store: String,
    /// Where the store is, without a password.
    pub store_path: String,
    /// A label for the environment, such as `production`.
    pub environment: Option<String>,
    /// The colour of the label.
    pub colour: Colour,
    /// Whether the dashboard changes nothing, whatever the visitor may do.
    pub read_only: bool,
    /// The URL of the server without a path, as other programs reach it.
    pub url: String,
}

/// The colour of the environment label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Colour {
    /// Grey, for places where nothing can go wrong.
    #[default]
    Grey,
    /// Green.
    Green,
    /// Blue.
    Blue,
    /// Amber.
    Amber,
    /// Red, for production.
    Red,
}

impl Colour {
    /// All colours.
    pub const ALL: [Colour; 5] = [
        Colour::Grey,
        Colour::Green,
        Colour::Blue,
        Colour::Amber,
        Colour::Red,
    ];

    /// Returns the name of the colour.
    pub fn name(self) -> &'static str {
        match self {
            Colour::Grey => "grey",
            Colour::Green => "green",
            Colour::Blue => "blue",
            Colour::Amber => "amber",
            Colour::Red => "red",
        }
    }
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// The person, or `None` if they must sign in first.
    pub identity: Option<Identity>,
    /// The token that changing requests of this browser must carry.
    pub csrf: String,
    /// A cookie to set with the response.
    pub cookie: Option<HeaderValue>,
}

/// A person who may see something.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The id in the audit log.
    pub id: String,
    /// The name in the audit log.
    pub name: String,
    /// What the person may do.
    pub scopes: Vec<Scope>,
    /// How the person signed in.
    pub signed_in: SignedIn,
}

impl Identity {
    /// Whether the person may do what `scope` allows.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|has| {
            *has == scope
                || *has == Scope::Admin
                || (scope == Scope::Read && *has == Scope::ReadPayload)
        })
    }
}

/// How a person signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedIn {
    /// The server has no API keys: everyone on this machine has access.
    Locally,
    /// With an API key. They can sign out.
    WithKey,
    /// A trusted proxy names the person.
    ByProxy,
}

/// Why the server refused a request before any page was built.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The status of the response.
    pub status: StatusCode,
    /// What is wrong and what to do next.
    pub detail: String,
}

/// A request to the REST API.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path with its query: `/api/v1/queues?limit=10`.
    pub path: String,
    /// The JSON body. Empty if there is none.
    pub body: Bytes,
    /// The `Idempotency-Key`.
    pub idempotency_key: Option<String>,
}

/// The response of the REST API.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}
