//! The bytes of one connection: read with strict framing, written at a minimum rate.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::deadlines::{ConnectionDeadlines, MinWriteRate};
use crate::framing::Framing;

/// The most that is read at once.
const READ_BYTES: usize = 16 * 1024;
/// The largest buffer that an idle connection keeps.
const IDLE_BUFFER_BYTES: usize = 1024;

/// A connection that sits between the network and the HTTP library.
#[derive(Debug)]
pub(crate) struct GuardedStream<S> {
    stream: S,
    framing: Framing,
    deadlines: Arc<ConnectionDeadlines>,
    /// Bytes that `framing` checked. The HTTP library has read the first `delivered` of them.
    checked: Vec<u8>,
    delivered: usize,
    write_rate: MinWriteRate,
    stall: Option<WriteStall>,
    /// Whether the network has not accepted all written bytes yet.
    write_blocked: bool,
}

/// A client that does not read fast enough: it must read `MinWriteRate::bytes` before the timer
/// ends.
#[derive(Debug)]
struct WriteStall {
    timer: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<S> GuardedStream<S> {
    pub(crate) fn new(
        stream: S,
        framing: Framing,
        deadlines: Arc<ConnectionDeadlines>,
        write_rate: MinWriteRate,
    ) -> Self {
        GuardedStream {
            stream,
            framing,
            deadlines,
            checked: Vec::new(),
            delivered: 0,
            write_rate,
            stall: None,
            write_blocked: false,
        }
    }

    /// Returns the result of a write, or an error once the client reads too slowly.
    fn check_write_rate(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                let enough = self.write_rate.bytes;
                if let Some(stall) = &mut self.stall {
                    stall.bytes = stall.bytes.saturating_add(bytes);
                    if stall.bytes >= enough {
                        self.stall = None;
                    }
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if !std::mem::replace(&mut self.write_blocked, true) {
                    self.deadlines.write_blocked();
                }
                let deadline = Instant::now() + self.write_rate.window;
                let stall = self.stall.get_or_insert_with(|| WriteStall {
                    timer: Box::pin(tokio::time::sleep_until(deadline)),
                    bytes: 0,
                });
                ready!(stall.timer.as_mut().poll(cx));
                let message = "the client reads the response too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.delivered == this.checked.len() {
            this.delivered = 0;
            if this.checked.capacity() > IDLE_BUFFER_BYTES {
                this.checked = Vec::new(); // many connections stay idle for a long time
            }
            this.checked.clear();
            let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
            let mut scratch = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut scratch))?;
            let received = scratch.filled();
            if received.is_empty() {
                return Poll::Ready(Ok(())); // end of the stream
            }
            this.framing.push(received, &mut this.checked);
            this.deadlines.bytes_received(this.framing.is_http2());
        }
        let undelivered = this.checked.get(this.delivered..).unwrap_or_default();
        let bytes = undelivered.len().min(buffer.remaining());
        buffer.put_slice(undelivered.get(..bytes).unwrap_or_default());
        this.delivered += bytes;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_write_rate(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.check_write_rate(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.stall = None;
            if std::mem::take(&mut self.write_blocked) {
                self.deadlines.all_written();
            }
        }
        let flushed = flushed.map_ok(|()| 0);
        self.check_write_rate(cx, flushed).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
