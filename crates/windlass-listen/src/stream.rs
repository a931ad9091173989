//! The bytes of one connection: read strictly, written with a minimum rate.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::activity::{Activity, WritePace};
use crate::framing::Framing;

/// So much is read at once.
const READ_BYTES: usize = 16 * 1024;
/// So much memory a connection keeps while nothing comes.
const KEPT_BYTES: usize = 1024;

/// A connection between the network and the HTTP library.
#[derive(Debug)]
pub(crate) struct Guarded<S> {
    stream: S,
    framing: Framing,
    activity: Arc<Activity>,
    /// What was looked at and not handed on yet, from `handed` on.
    passed: Vec<u8>,
    handed: usize,
    pace: WritePace,
    stall: Option<Stall>,
    /// Whether the network has not taken all that was written.
    unwritten: bool,
}

/// The other side does not take what it is sent.
#[derive(Debug)]
struct Stall {
    over: Pin<Box<Sleep>>,
    taken: usize,
}

impl<S> Guarded<S> {
    pub(crate) fn new(
        stream: S,
        framing: Framing,
        activity: Arc<Activity>,
        pace: WritePace,
    ) -> Self {
        Guarded {
            stream,
            framing,
            activity,
            passed: Vec::new(),
            handed: 0,
            pace,
            stall: None,
            unwritten: false,
        }
    }

    /// Watches what became of a write.
    fn watch(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                let enough = self.pace.bytes;
                if let Some(stall) = &mut self.stall {
                    stall.taken = stall.taken.saturating_add(bytes);
                    if stall.taken >= enough {
                        self.stall = None;
                    }
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if !std::mem::replace(&mut self.unwritten, true) {
                    self.activity.write_waits();
                }
                let until = Instant::now() + self.pace.stretch;
                let stall = self.stall.get_or_insert_with(|| Stall {
                    over: Box::pin(tokio::time::sleep_until(until)),
                    taken: 0,
                });
                ready!(stall.over.as_mut().poll(cx));
                let slow = "the other side reads too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.handed == this.passed.len() {
            this.handed = 0;
            if this.passed.capacity() > KEPT_BYTES {
                this.passed = Vec::new(); // many connections are idle for long
            }
            this.passed.clear();
            let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
            let mut scratch = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut scratch))?;
            let came = scratch.filled();
            if came.is_empty() {
                return Poll::Ready(Ok(())); // the end
            }
            this.framing.push(came, &mut this.passed);
            this.activity.bytes_came(this.framing.is_http2());
        }
        let waiting = this.passed.get(this.handed..).unwrap_or_default();
        let bytes = waiting.len().min(buffer.remaining());
        buffer.put_slice(waiting.get(..bytes).unwrap_or_default());
        this.handed += bytes;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.stall = None; // it took all that there was
            if std::mem::take(&mut self.unwritten) {
                self.activity.all_written();
            }
        }
        let flushed = flushed.map_ok(|()| 0);
        self.watch(cx, flushed).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
