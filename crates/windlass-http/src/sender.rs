//! Sends requests and reads answers, each within its bounds. Follows no redirect, keeps no cookie, unpacks nothing.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_util::sync::CancellationToken;
use windlass_core::Delivery;

use crate::answer::{Answer, BODY_READ_MAX, Trouble, head_json};
use crate::connector::{Connector, DialError};
use crate::guard::TargetClass;
use crate::phases::{Phase, Phases};

/// The head of an answer may be so long.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// A connection without requests is closed after so long.
const IDLE: Duration = Duration::from_secs(30);
/// So many connections to one host are kept for later requests.
const IDLE_MAX: usize = 32;
/// So many interim answers (1xx) may come before the answer.
const INTERIM_MAX: usize = 16;

type HttpClient = Client<Connector, Full<Bytes>>;

/// Sends requests.
pub(crate) struct Sender {
    /// Uses connections again, and sends again what a closed one never took.
    reusing: HttpClient,
    /// A connection for each request, and no second sending.
    fresh: HttpClient,
    connector: Connector,
}

impl Sender {
    pub(crate) fn new(connector: Connector) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http2_max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
        let reusing = builder.build(connector.clone());
        builder
            .pool_max_idle_per_host(0)
            .retry_canceled_requests(false);
        Sender {
            reusing,
            fresh: builder.build(connector.clone()),
            connector,
        }
    }

    /// How many connections were begun so far.
    pub(crate) fn opened(&self) -> u64 {
        self.connector.opened()
    }

    /// Sends a request and reads the answer to it.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        delivery: Delivery,
        phases: &Arc<Phases>,
    ) -> Result<Answer, Trouble> {
        let flooded = bound_interim(&mut request);
        let client = match delivery {
            Delivery::AtLeastOnce => &self.reusing,
            Delivery::AtMostOnce => &self.fresh,
        };
        let answered = async {
            phases.begin(Phase::FirstByte);
            let sent = phases.around(client.request(request)).await;
            phases.end(Phase::FirstByte);
            let response = sent.map_err(|error| trouble(&error))?;
            if let Some(target) = response.extensions().get::<TargetClass>() {
                phases.reached(*target);
            }
            phases.answered(head_json(
                response.status(),
                response.version(),
                response.headers(),
            ));
            read(response).await
        };
        tokio::select! {
            answer = answered => answer,
            () = flooded.cancelled() => Err(Trouble::Unknown(
                format!("the target sent more than {INTERIM_MAX} interim answers"),
            )),
        }
    }
}

/// Is fired when too many interim answers came: the protocol itself knows no bound.
fn bound_interim(request: &mut Request<Full<Bytes>>) -> CancellationToken {
    let flooded = CancellationToken::new();
    let (count, fire) = (AtomicUsize::new(0), flooded.clone());
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX {
            fire.cancel();
        }
    });
    flooded
}

async fn read(response: Response<Incoming>) -> Result<Answer, Trouble> {
    let (head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    let mut cut = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Trouble::Unknown(broken_off(&error)))?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers
        };
        let room = BODY_READ_MAX - read.len();
        read.extend_from_slice(data.get(..room).unwrap_or(&data));
        if data.len() > room {
            cut = true; // the connection goes with the body
            break;
        }
    }
    Ok(Answer {
        status: head.status,
        version: head.version,
        headers: head.headers,
        body: read.freeze(),
        cut,
    })
}

fn broken_off(error: &hyper::Error) -> String {
    format!("the target's answer broke off: {}", chain(error))
}

fn trouble(error: &hyper_util::client::legacy::Error) -> Trouble {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(dial) = one.downcast_ref::<DialError>() {
            return match dial {
                DialError::Refused => Trouble::Refused,
                DialError::NoAddress => Trouble::NoAddress(dial.to_string()),
                other => Trouble::NotSent(other.to_string()),
            };
        }
        cause = one.source();
    }
    let text = chain(error);
    if error.is_connect() {
        Trouble::NotSent(format!("connecting to the target failed: {text}"))
    } else {
        Trouble::Unknown(format!("the target gave no answer: {text}"))
    }
}

/// The text of an error and of its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text.push_str(": ");
        text.push_str(&one.to_string());
        cause = one.source();
    }
    text
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("connector", &self.connector)
            .finish_non_exhaustive()
    }
}
