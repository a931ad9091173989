//! Reads the event stream of a server (server-sent events).

use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use tracing::debug;
use windlass_api::{Event, EventParams};

use crate::client::{BACKOFF, BACKOFF_MAX, Call, Client, Method};
use crate::connection::Connection;
use crate::error::Error;

/// The reader reconnects after this long without any data. The server sends a heartbeat every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long the reader waits before it reconnects, unless the server sets another time.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

impl Client {
    /// Connects to the event stream of one server.
    ///
    /// The stream starts now, or after `last_event_id`. It has the events of this server only, not of
    /// others on the same store.
    ///
    /// ```no_run
    /// # use windlass_client::{Client, Error, api::EventParams};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let mut events = client.events(&EventParams::default()).await?;
    /// loop {
    ///     println!("{:?}", events.next().await?);
    /// }
    /// # }
    /// ```
    pub async fn events(&self, params: &EventParams) -> Result<Events, Error> {
        let mut params = params.clone();
        let last_event_id = params.last_event_id.take();
        let mut events = Events {
            client: self.clone(),
            call: Call::new(Method::Get, &["events"]).query(&params),
            last_event_id,
            reconnect_after: RECONNECT_AFTER,
            stream: None,
        };
        events.stream = Some(events.connect().await?);
        Ok(events)
    }
}

/// A reader of the event stream of a server, from [`Client::events`].
///
/// It reconnects when the stream breaks, and resumes after the last event that it returned.
pub struct Events {
    client: Client,
    call: Call,
    last_event_id: Option<String>,
    reconnect_after: Duration,
    stream: Option<Stream>,
}

/// One connection to the stream.
struct Stream {
    body: Incoming,
    frames: Frames,
    /// The connection ends when this is dropped.
    _connection: Connection,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:?})", self.client)
    }
}

impl Events {
    /// Returns the id of the last event. Another reader can resume after it, on the same server only.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// Waits for the next event. Dropping the future loses no event.
    ///
    /// If the server no longer has some events, the reader returns one event `missed` in their place.
    ///
    /// # Errors
    ///
    /// Returns an error when reconnecting failed as often as the client's `retries` allow. After a
    /// temporary error, call this method again: the reader continues where it stopped.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let frame = match &mut self.stream {
                Some(stream) => stream.next_frame(&self.client).await,
                None => {
                    self.stream = Some(self.connect().await?);
                    continue;
                }
            };
            match frame {
                Ok(frame) => {
                    self.reconnect_after = frame.retry.unwrap_or(self.reconnect_after);
                    self.last_event_id = frame.id.or(self.last_event_id.take());
                    if !frame.data.is_empty() {
                        return self.client.parse(frame.data.as_bytes());
                    }
                }
                Err(error) => {
                    debug!(%error, "event stream broke; reconnecting");
                    self.stream = None;
                    tokio::time::sleep(self.reconnect_after.min(BACKOFF_MAX)).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Stream, Error> {
        let mut backoff = BACKOFF;
        for _ in 0..self.client.retries() {
            match self.connect_once().await {
                Err(error) if error.is_temporary() => tokio::time::sleep(backoff).await,
                connected => return connected,
            }
            backoff = BACKOFF_MAX.min(backoff * 2);
        }
        self.connect_once().await
    }

    async fn connect_once(&self) -> Result<Stream, Error> {
        let last = self.last_event_id.as_deref().map(HeaderValue::try_from);
        let last = last.transpose().map_err(|_| Error::Invalid {
            what: "the id of the last event".to_owned(),
            rule: "must not contain control characters".to_owned(),
        })?;
        let header = last.map(|last| ("last-event-id", last));
        let (connection, response) = self.client.open_stream(&self.call, header).await?;
        Ok(Stream::new(
            connection,
            response,
            self.client.answer_bytes_max(),
        ))
    }
}

impl Stream {
    fn new(connection: Connection, response: Response<Incoming>, bytes_max: usize) -> Self {
        Stream {
            body: response.into_body(),
            frames: Frames {
                bytes_max,
                ..Frames::default()
            },
            _connection: connection,
        }
    }

    async fn next_frame(&mut self, client: &Client) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.frames.next() {
                return Ok(frame);
            }
            let piece = tokio::time::timeout(SILENCE_MAX, self.body.frame()).await;
            let piece = match piece {
                Ok(Some(Ok(piece))) => piece,
                Ok(Some(Err(error))) => return Err(client.broken(error.into())),
                Ok(None) => return Err(client.broken("the server ended the stream".into())),
                Err(silent) => return Err(client.broken(silent.into())),
            };
            self.frames.push(&piece.into_data().unwrap_or_default())?;
        }
    }
}

/// One event, comment or setting of the stream: the lines up to an empty line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    id: Option<String>,
    data: String,
    retry: Option<Duration>,
}

/// Splits a stream into frames. A piece of the stream can end anywhere.
#[derive(Debug, Default)]
struct Frames {
    /// The bytes that are not parsed yet.
    buffer: Vec<u8>,
    /// The lines before this index are parsed.
    searched: usize,
    frame: Frame,
    bytes_max: usize,
}

impl Frames {
    fn push(&mut self, piece: &Bytes) -> Result<(), Error> {
        let bytes = self.buffer.len() + self.frame.data.len() + piece.len();
        if bytes > self.bytes_max {
            let max = self.bytes_max;
            return Err(Error::TooLarge { max });
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// Returns the next complete frame.
    fn next(&mut self) -> Option<Frame> {
        loop {
            let rest = self.buffer.get(self.searched..)?;
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.buffer.drain(..self.searched);
                self.searched = 0;
                return None;
            };
            let line = rest.get(..length)?;
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
            let line = line.into_owned();
            self.searched += length + 1;
            if line.is_empty() {
                let frame = std::mem::take(&mut self.frame);
                if frame != Frame::default() {
                    return Some(frame);
                }
            } else {
                self.frame.add(&line);
            }
        }
    }
}

impl Frame {
    fn add(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.id = Some(value.to_owned()),
            "retry" => self.retry = value.parse().ok().map(Duration::from_millis),
            "data" if self.data.is_empty() => self.data.push_str(value),
            "data" => {
                self.data.push('\n');
                self.data.push_str(value);
            }
            _ => {} // the data has the name of the event, too; a line without a name is a heartbeat
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_do_not_depend_on_how_the_stream_is_split() {
        let text = "retry: 1000\n\n: nothing\n\nid: a-1\nevent: x\ndata: {\ndata: \"é\":1}\r\n\r\nid: 2\n\ndata: late";
        for size in [1, 2, 7, 1000] {
            let mut frames = Frames {
                bytes_max: 1000,
                ..Frames::default()
            };
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                frames.push(&Bytes::copy_from_slice(piece)).unwrap();
                found.extend(std::iter::from_fn(|| frames.next()));
            }
            let expected = [
                Frame {
                    retry: Some(Duration::from_secs(1)),
                    ..Frame::default()
                },
                Frame {
                    id: Some("a-1".to_owned()),
                    data: "{\n\"é\":1}".to_owned(),
                    retry: None,
                },
                Frame {
                    id: Some("2".to_owned()),
                    ..Frame::default()
                },
            ];
            assert_eq!(found, expected, "{size}");
        }
        let mut small = Frames {
            bytes_max: 5,
            ..Frames::default()
        };
        assert!(small.push(&Bytes::from_static(b"data: x")).is_err());
    }
}
