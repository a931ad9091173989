//! Whether a connection leads to one server process, or to a pooler.
//!
//! A server process announces its process id when a connection starts, and `pg_backend_pid()`
//! returns the same id. A pooler announces an id of its own. So if the ids are equal, a prepared
//! statement or a setting is still there in the next transaction.
//!
//! The client library has no function for the announced id, but puts it into the request that
//! cancels a statement. So this module lets it write such a request into memory, and reads the id
//! there.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The length of a request that cancels a statement. The process id is at offset 8.
const CANCEL_REQUEST: usize = 16;

/// Whether the connection leads directly to one server process.
pub(crate) async fn is_direct(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let rows = client.query_typed("select pg_backend_pid()", &[]).await?;
    let actual: Option<i32> = rows.first().map(|row| row.try_get(0)).transpose()?;
    Ok(actual.is_some() && actual == announced_id(client).await)
}

/// Returns the process id that the other end announced when the connection started.
async fn announced_id(client: &Client) -> Option<i32> {
    let (near, mut far) = tokio::io::duplex(64);
    far.write_all(b"S").await.ok()?; // the answer if the client asks for TLS first
    let token = client.cancel_token();
    token.cancel_query_raw(near, Plain).await.ok()?;
    let mut written = Vec::new();
    far.read_to_end(&mut written).await.ok()?;
    let id = written.get(written.len().checked_sub(CANCEL_REQUEST)? + 8..)?;
    Some(i32::from_be_bytes(id.first_chunk().copied()?))
}

/// In place of TLS: passes bytes on.
struct Plain;

/// A stream in memory in place of one with TLS.
struct PlainStream<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for Plain {
    type Stream = PlainStream<S>;
    type Error = Infallible;
    type Future = Ready<Result<PlainStream<S>, Infallible>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(PlainStream(stream)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for PlainStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PlainStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PlainStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
