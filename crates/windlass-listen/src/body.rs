//! Bodies: what comes in must keep a pace and end, what goes out keeps its request in flight and is handed out in pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::activity::InFlight;

/// How slowly and how much a body may come in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyPace {
    /// So long it may take, however small it is …
    pub(crate) time: Duration,
    /// … and a second more for each so many bytes.
    pub(crate) bytes_per_second: u64,
    /// So many bytes at most.
    pub(crate) bytes_max: u64,
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It came too slowly.
    #[error("the body came too slowly")]
    TooSlow,
    /// It is too large.
    #[error("the body is larger than any route takes")]
    TooLarge,
    /// The connection broke, or it was no body.
    #[error("the body could not be read")]
    Broken(#[source] hyper::Error),
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Paced<B> {
    body: B,
    pace: BodyPace,
    started: Instant,
    bytes: u64,
    limit: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B, pace: BodyPace) -> Self {
        Paced {
            body,
            pace,
            started: Instant::now(),
            bytes: 0,
            limit: None,
        }
    }

    fn until(&self) -> Instant {
        let earned = self.bytes.saturating_mul(1000) / self.pace.bytes_per_second.max(1);
        self.started + self.pace.time + Duration::from_millis(earned)
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Poll::Ready(frame) = frame else {
            let until = self.until();
            let limit = self
                .limit
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
            if limit.deadline() != until {
                limit.as_mut().reset(until);
            }
            ready!(limit.as_mut().poll(cx));
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        let Some(frame) = frame else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(BodyError::Broken)?;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > self.pace.bytes_max {
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

/// A rest of at most this size is read before a request is answered over HTTP/2.
const REST_BYTES_MAX: usize = 64 * 1024;
/// The rest must come within this time.
const REST_TIME: Duration = Duration::from_secs(2);

/// Lends a body to whoever answers the request. What they leave unread comes back as the rest.
pub(crate) fn lend<B>(body: B) -> (Lent<B>, Rest<B>) {
    let (back, left) = oneshot::channel();
    let lent = Lent {
        body: Some(body),
        back: Some(back),
    };
    (lent, Rest(left))
}

/// A body that goes back when its reader drops it before its end.
#[derive(Debug)]
pub(crate) struct Lent<B> {
    body: Option<B>,
    back: Option<oneshot::Sender<B>>,
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        if let Some((body, back)) = self.body.take().zip(self.back.take()) {
            let _ = back.send(body); // no one reads the rest where the connection has gone
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Lent<B> {
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

/// What is left of a body that was lent.
#[derive(Debug)]
pub(crate) struct Rest<B>(oneshot::Receiver<B>);

impl<B: Body<Data = Bytes> + Unpin> Rest<B> {
    /// Reads a small rest to its end, and throws it away. A large or slow one is left.
    pub(crate) async fn read(mut self) {
        let Ok(mut body) = self.0.try_recv() else {
            return;
        };
        let most = REST_BYTES_MAX as u64;
        if body.size_hint().lower() > most {
            return;
        }
        let reading = async {
            let mut left = REST_BYTES_MAX;
            while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(bytes) {
                    Some(after) => left = after,
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(REST_TIME, reading).await;
    }
}

/// A larger part of an answer is handed out in pieces of so many bytes: so it shows how fast they are taken.
const PIECE_BYTES: usize = 32 * 1024;

/// The body of an answer: its request is over when it is.
#[derive(Debug)]
pub(crate) struct Answer<B> {
    body: B,
    /// What the body gave and was not handed out yet.
    rest: Bytes,
    in_flight: InFlight,
}

impl<B> Answer<B> {
    pub(crate) fn new(body: B, in_flight: InFlight) -> Self {
        Answer {
            body,
            rest: Bytes::new(),
            in_flight,
        }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        self.in_flight.hands_out(piece.len());
        Frame::data(piece)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            self.in_flight.waits();
            return Poll::Pending;
        };
        let frame = frame.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    self.piece()
                }
                Err(trailers) => trailers,
            })
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Parts of a body, each after a wait.
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

    /// Reads parts that come at these seconds with so many bytes.
    async fn read(parts: &[(u64, usize)]) -> Result<u64, BodyError> {
        let at = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let parts = parts
            .iter()
            .map(|(second, bytes)| (Box::pin(at(*second)), *bytes));
        let pace = BodyPace {
            time: Duration::from_secs(30),
            bytes_per_second: 10,
            bytes_max: 1000,
        };
        let mut body = Paced::new(Parts(parts.collect()), pace);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
        {
            frame?;
        }
        Ok(body.bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_its_time_and_earns_more_with_its_bytes() {
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
    async fn a_body_has_its_size() {
        assert_eq!(read(&[(0, 500), (0, 500)]).await.unwrap(), 1000);
        assert!(matches!(
            read(&[(0, 500), (0, 501)]).await,
            Err(BodyError::TooLarge)
        ));
    }
}
