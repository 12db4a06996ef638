//! Closes a connection so that its last response arrives.
//!
//! A socket that is closed over unread bytes is reset, and the reset destroys the bytes that the peer has not read yet.
//! A proxy that sends a head that is too long then sees a failed connection instead of the 431, and may take the
//! service for unavailable. So the end of the stream is sent first, and further bytes of the peer are read and
//! discarded, up to [`MAX_DISCARDED`] bytes and for [`MAX_LINGER`]. An idle connection is closed at once. Knows no
//! protocol.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Sleep, sleep};

/// Maximum discarded bytes: twice the largest head that common proxies send, and twice the largest body.
pub(crate) const MAX_DISCARDED: usize = 2 << 20;

/// How long the peer has to close its side.
pub(crate) const MAX_LINGER: Duration = Duration::from_secs(1);

/// Buffer size of one read of discarded bytes.
const DISCARD_BUFFER_BYTES: usize = 8 << 10;

/// A connection that lingers when it is shut down.
pub(crate) struct LingeringIo<I> {
    io: I,
    /// Whether every request that was read has its response and the next read found nothing.
    idle: bool,
    read_since_write: bool,
    linger: Option<LingerState>,
}

/// The progress of the linger. It exists once the end of the stream is sent.
struct LingerState {
    bytes_left: usize,
    /// Exists once a read found nothing.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<I> LingeringIo<I> {
    pub(crate) fn new(io: I) -> Self {
        LingeringIo { io, idle: false, read_since_write: false, linger: None }
    }

    fn record_write(&mut self) {
        self.read_since_write = false;
        self.idle = false;
    }
}

impl<I: AsyncRead + Unpin> LingeringIo<I> {
    /// Discards input until the peer closes its side or a bound is reached.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else {
            return Poll::Ready(());
        };
        let mut discard_buffer = [MaybeUninit::uninit(); DISCARD_BUFFER_BYTES];
        loop {
            let mut buffer = ReadBuf::uninit(&mut discard_buffer);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                // A peer that is gone reads nothing more.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    self.idle = false;
                    let read = buffer.filled().len();
                    linger.bytes_left = linger.bytes_left.saturating_sub(read);
                    if linger.bytes_left == 0 {
                        return Poll::Ready(());
                    }
                }
                // A task without budget gets `Pending` even where there are bytes.
                Poll::Pending if self.idle && has_budget_remaining() => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let deadline = linger.deadline.get_or_insert_with(|| Box::pin(sleep(MAX_LINGER)));
        deadline.as_mut().poll(cx)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for LingeringIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        if polled.is_pending() {
            self.idle = !self.read_since_write;
        } else if buffer.filled().len() > before {
            self.read_since_write = true;
            self.idle = false;
        }
        polled
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.record_write();
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.record_write();
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.linger = Some(LingerState { bytes_left: MAX_DISCARDED, deadline: None });
        }
        self.poll_discard(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    /// The two ends of a connection. The server has read the beginning of a request and sent its response.
    async fn responded_early() -> (LingeringIo<DuplexStream>, DuplexStream) {
        let (server, mut client) = duplex(64 << 10);
        let mut server = LingeringIo::new(server);
        client.write_all(b"begun").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
        server.write_all(b"431").await.unwrap();
        (server, client)
    }

    async fn shutdown_time(server: &mut LingeringIo<DuplexStream>) -> Duration {
        let begun = Instant::now();
        server.shutdown().await.unwrap();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_closes_ends_the_linger() {
        let (mut server, mut client) = responded_early().await;
        let peer = tokio::spawn(async move {
            // It sends more than the buffer between them holds, and only then reads.
            client.write_all(&[b'x'; 500 << 10]).await.unwrap();
            let mut response = Vec::new();
            client.read_to_end(&mut response).await.unwrap();
            response
        });
        assert_eq!(shutdown_time(&mut server).await, Duration::ZERO);
        assert_eq!(peer.await.unwrap(), b"431");
    }

    #[tokio::test(start_paused = true)]
    async fn the_linger_ends_after_the_deadline() {
        let (mut server, mut client) = responded_early().await;
        let took = shutdown_time(&mut server).await;
        assert!((MAX_LINGER..2 * MAX_LINGER).contains(&took), "{took:?}");
        client.write_all(b"still here").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_linger_ends_after_the_maximum_of_bytes() {
        let (mut server, mut client) = responded_early().await;
        let peer = tokio::spawn(async move {
            let mut sent = 0;
            while let Ok(more) = client.write(&[b'x'; 4 << 10]).await {
                sent += more;
            }
            sent
        });
        assert_eq!(shutdown_time(&mut server).await, Duration::ZERO);
        drop(server);
        let sent = peer.await.unwrap();
        assert!((MAX_DISCARDED..MAX_DISCARDED + (128 << 10)).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_closes_at_once_and_one_with_unread_bytes_does_not() {
        for unread in [false, true] {
            let (mut server, mut client) = responded_early().await;
            // No byte of a next request has arrived.
            let next = tokio::time::timeout(Duration::ZERO, server.read_u8()).await;
            assert!(next.is_err());
            if unread {
                client.write_all(b"more").await.unwrap();
            }
            let took = shutdown_time(&mut server).await;
            assert_eq!(took >= MAX_LINGER, unread, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_not_idle() {
        let (mut server, mut client) = responded_early().await;
        client.write_all(b"half").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        let rest = tokio::time::timeout(Duration::ZERO, server.read_u8()).await;
        assert!(rest.is_err());
        assert!(shutdown_time(&mut server).await >= MAX_LINGER);
    }
}
