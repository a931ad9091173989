//! Request bodies, which must arrive fast enough and end, and response bodies, which keep their
//! request in flight and are sent in small pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::deadlines::InFlightRequest;

/// How long a request body may take and how large it may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// The time that every body has.
    pub(crate) base_time: Duration,
    /// A body gets one more second for this many bytes.
    pub(crate) bytes_per_second: u64,
    pub(crate) bytes_max: u64,
}

/// Why a request body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client sent it more slowly than `Limits::body_time` and `Limits::body_bytes_per_second`
    /// allow.
    #[error("the request body arrived too slowly")]
    TooSlow,
    /// It is larger than `Limits::body_bytes_max`.
    #[error("the request body is larger than any route accepts")]
    TooLarge,
    /// The connection broke, or the body is malformed.
    #[error("the connection broke while the request body was read, or the body is malformed")]
    Broken(#[source] hyper::Error),
}

/// A request body that fails when it breaks its limits.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    body: B,
    limits: BodyLimits,
    started: Instant,
    bytes: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    pub(crate) fn new(body: B, limits: BodyLimits) -> Self {
        RequestBody {
            body,
            limits,
            started: Instant::now(),
            bytes: 0,
            timer: None,
        }
    }

    fn deadline(&self) -> Instant {
        let earned_millis = self.bytes.saturating_mul(1000) / self.limits.bytes_per_second.max(1);
        self.started + self.limits.base_time + Duration::from_millis(earned_millis)
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Poll::Ready(frame) = frame else {
            let deadline = self.deadline();
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        let Some(frame) = frame else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(BodyError::Broken)?;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > self.limits.bytes_max {
            return Poll::Ready(Some(Err(BodyError::TooLarge)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The most that `UnreadBody::discard` reads.
const DISCARD_BYTES_MAX: usize = 64 * 1024;
/// The longest that `UnreadBody::discard` takes.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// Wraps a request body so that the listener gets it back if the handler does not read all of it.
pub(crate) fn reclaimable<B>(body: B) -> (ReclaimableBody<B>, UnreadBody<B>) {
    let (owner, unread) = oneshot::channel();
    let body = ReclaimableBody {
        body: Some(body),
        owner: Some(owner),
    };
    (body, UnreadBody(unread))
}

/// A body that returns to its owner when the reader drops it before its end.
#[derive(Debug)]
pub(crate) struct ReclaimableBody<B> {
    body: Option<B>,
    owner: Option<oneshot::Sender<B>>,
}

impl<B> Drop for ReclaimableBody<B> {
    fn drop(&mut self) {
        if let Some((body, owner)) = self.body.take().zip(self.owner.take()) {
            let _ = owner.send(body); // fails if the connection closed: then no one needs the body
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReclaimableBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None; // read to its end, or broken
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(Body::size_hint);
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

/// Receives a `ReclaimableBody` that was not read to its end.
#[derive(Debug)]
pub(crate) struct UnreadBody<B>(oneshot::Receiver<B>);

impl<B: Body<Data = Bytes> + Unpin> UnreadBody<B> {
    /// Reads the rest of the body and throws it away. Gives up if the rest is large or slow.
    pub(crate) async fn discard(mut self) {
        let Ok(mut body) = self.0.try_recv() else {
            return;
        };
        if body.size_hint().lower() > DISCARD_BYTES_MAX as u64 {
            return;
        }
        let reading = async {
            let mut allowance = DISCARD_BYTES_MAX;
            while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match allowance.checked_sub(bytes) {
                    Some(left) => allowance = left,
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
    }
}

/// The HTTP library gets a response in pieces of at most this size. It asks for the next piece when
/// the client read the last one, which shows how fast the client reads.
const PIECE_BYTES: usize = 32 * 1024;

/// A response body. Its request is in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct ResponseBody<B> {
    body: B,
    /// The rest of the last frame of `body`, still to be sent.
    buffered: Bytes,
    in_flight: InFlightRequest,
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(body: B, in_flight: InFlightRequest) -> Self {
        ResponseBody {
            body,
            buffered: Bytes::new(),
            in_flight,
        }
    }

    fn next_piece(&mut self) -> Frame<Bytes> {
        let length = self.buffered.len().min(PIECE_BYTES);
        let piece = self.buffered.split_to(length);
        self.in_flight.bytes_offered(piece.len());
        Frame::data(piece)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.buffered.is_empty() {
            return Poll::Ready(Some(Ok(self.next_piece())));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            self.in_flight.nothing_to_send();
            return Poll::Pending;
        };
        let frame = frame.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    self.buffered = data;
                    self.next_piece()
                }
                Err(trailers) => trailers,
            })
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (buffered, rest) = (self.buffered.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + buffered);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + buffered);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A body whose parts arrive at given times.
    #[derive(Debug)]
    struct Parts(VecDeque<(Pin<Box<Sleep>>, usize)>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = hyper::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
            let Some((wait, bytes)) = self.0.front_mut() else {
                return Poll::Ready(None);
            };
            ready!(wait.as_mut().poll(cx));
            let frame = Frame::data(vec![b'x'; *bytes].into());
            self.0.pop_front();
            Poll::Ready(Some(Ok(frame)))
        }
    }

    /// Reads a body of parts `(second, bytes)`.
    async fn read(parts: &[(u64, usize)]) -> Result<u64, BodyError> {
        let at = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let parts = parts
            .iter()
            .map(|(second, bytes)| (Box::pin(at(*second)), *bytes));
        let limits = BodyLimits {
            base_time: Duration::from_secs(30),
            bytes_per_second: 10,
            bytes_max: 1000,
        };
        let mut body = RequestBody::new(Parts(parts.collect()), limits);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
        {
            frame?;
        }
        Ok(body.bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_earns_time_with_its_bytes() {
        assert_eq!(read(&[(29, 1)]).await.unwrap(), 1);
        assert!(matches!(read(&[(31, 1)]).await, Err(BodyError::TooSlow)));
        assert_eq!(read(&[(0, 500), (79, 1)]).await.unwrap(), 501);
        assert!(matches!(
            read(&[(0, 500), (81, 1)]).await,
            Err(BodyError::TooSlow)
        ));
        let drip: Vec<_> = (1..100).map(|second| (second, 1)).collect();
        assert!(matches!(read(&drip).await, Err(BodyError::TooSlow)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_largest_size() {
        assert_eq!(read(&[(0, 500), (0, 500)]).await.unwrap(), 1000);
        assert!(matches!(
            read(&[(0, 500), (0, 501)]).await,
            Err(BodyError::TooLarge)
        ));
    }
}
