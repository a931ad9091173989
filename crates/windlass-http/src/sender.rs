//! Sends requests and reads responses, within limits. It follows no redirects, keeps no cookies and
//! does not decompress.

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

use crate::connector::{Connector, DialError};
use crate::guard::TargetClass;
use crate::response::{BODY_READ_MAX, RequestError, TargetResponse, head_json};
use crate::timeline::{RequestPhase, RequestTimeline};

/// The largest response head.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long a connection without requests stays open.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// The most idle connections to one host.
const IDLE_PER_HOST_MAX: usize = 32;
/// The most interim responses (1xx) before the response.
const INTERIM_MAX: usize = 16;

type HttpClient = Client<Connector, Full<Bytes>>;

/// Sends requests.
pub(crate) struct Sender {
    /// For at-least-once jobs. It reuses connections, and resends a request if the connection
    /// closed before it was sent.
    pooled: HttpClient,
    /// For at-most-once jobs. It opens a connection for each request and never resends.
    unpooled: HttpClient,
    connector: Connector,
}

impl Sender {
    pub(crate) fn new(connector: Connector) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http2_max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
        let pooled = builder.build(connector.clone());
        builder
            .pool_max_idle_per_host(0)
            .retry_canceled_requests(false);
        Sender {
            pooled,
            unpooled: builder.build(connector.clone()),
            connector,
        }
    }

    /// Returns how many connections it has tried to open so far.
    pub(crate) fn opened(&self) -> u64 {
        self.connector.opened()
    }

    /// Sends a request and reads the response.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        delivery: Delivery,
        timeline: &Arc<RequestTimeline>,
    ) -> Result<TargetResponse, RequestError> {
        let too_many_interim = limit_interim_responses(&mut request);
        let client = match delivery {
            Delivery::AtLeastOnce => &self.pooled,
            Delivery::AtMostOnce => &self.unpooled,
        };
        let exchange = async {
            timeline.begin(RequestPhase::FirstByte);
            let sent = timeline.record(client.request(request)).await;
            timeline.end(RequestPhase::FirstByte);
            let response = sent.map_err(|error| request_error(&error))?;
            if let Some(target) = response.extensions().get::<TargetClass>() {
                timeline.set_target(*target);
            }
            timeline.set_head(head_json(
                response.status(),
                response.version(),
                response.headers(),
            ));
            read(response).await
        };
        tokio::select! {
            response = exchange => response,
            () = too_many_interim.cancelled() => Err(RequestError::OutcomeUnknown(
                format!("it sent more than {INTERIM_MAX} interim responses (1xx)"),
            )),
        }
    }
}

/// Returns a token that is cancelled when too many interim responses arrive. HTTP itself has no
/// limit for them.
fn limit_interim_responses(request: &mut Request<Full<Bytes>>) -> CancellationToken {
    let too_many = CancellationToken::new();
    let (count, cancel) = (AtomicUsize::new(0), too_many.clone());
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX {
            cancel.cancel();
        }
    });
    too_many
}

async fn read(response: Response<Incoming>) -> Result<TargetResponse, RequestError> {
    let (head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    let mut is_truncated = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestError::OutcomeUnknown(incomplete_body(&error)))?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers
        };
        let left = BODY_READ_MAX - read.len();
        read.extend_from_slice(data.get(..left).unwrap_or(&data));
        if data.len() > left {
            is_truncated = true; // dropping the rest of the body closes the connection
            break;
        }
    }
    Ok(TargetResponse {
        status: head.status,
        version: head.version,
        headers: head.headers,
        body: read.freeze(),
        is_truncated,
    })
}

fn incomplete_body(error: &hyper::Error) -> String {
    format!("its body is incomplete: {}", with_causes(error))
}

fn request_error(error: &hyper_util::client::legacy::Error) -> RequestError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(dial) = current.downcast_ref::<DialError>() {
            return match dial {
                DialError::AddressNotAllowed => RequestError::AddressNotAllowed,
                DialError::NoAllowedAddress => RequestError::NoAllowedAddress,
                other => RequestError::NotSent(other.to_string()),
            };
        }
        cause = current.source();
    }
    let text = with_causes(error);
    if error.is_connect() {
        RequestError::NotSent(text)
    } else {
        RequestError::OutcomeUnknown(text)
    }
}

/// Returns the text of an error and of its causes.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(current) = cause {
        text.push_str(": ");
        text.push_str(&current.to_string());
        cause = current.source();
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
