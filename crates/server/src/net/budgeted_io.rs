//! Bounds the bytes read from one connection in one turn, so that it cannot occupy a thread.
//!
//! The runtime counts reads, and a turn ends after 128 of them. But one read may bring thousands of frames, each of
//! which is work, so a flood of them had turns of a tenth of a second, for which all other connections waited. Here a
//! read counts once for each [`BUDGET_UNIT_BYTES`] bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::frame_scanner::FrameScanner;
use super::unread_responses::ConnectionUnread;

/// Bytes per unit of budget. A turn has 128 units: 64 KiB, some thousands of the smallest frames.
const BUDGET_UNIT_BYTES: usize = 512;

/// Bytes read from a connection in one turn, give or take one read.
#[cfg(test)]
pub(crate) const TURN_BYTES: usize = 128 * BUDGET_UNIT_BYTES;

/// A connection that takes turns with others.
pub(crate) struct BudgetedIo<I> {
    io: I,
    frames: FrameScanner,
    unread: Arc<ConnectionUnread>,
}

impl<I> BudgetedIo<I> {
    /// Bytes that are read pass through `frames`. `unread` records whether the socket accepts writes.
    pub(crate) fn new(io: I, frames: FrameScanner, unread: Arc<ConnectionUnread>) -> Self {
        BudgetedIo { io, frames, unread }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for BudgetedIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.frames.scan(&mut buffer.filled_mut()[before..])?;
        for _ in 0..(buffer.filled().len() - before) / BUDGET_UNIT_BYTES {
            match coop::poll_proceed(cx) {
                Poll::Ready(unit) => unit.made_progress(),
                // The turn is over, and the next read returns `Pending`.
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for BudgetedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.unread.set_blocked(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.unread.set_blocked(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::header_blocks::AuthorityUse;
    use super::*;
    use std::future::poll_fn;
    use tokio::sync::Semaphore;

    /// The bytes read in one turn from a connection that always has more.
    async fn read_in_one_turn(mut io: impl AsyncRead + Unpin + Send + 'static, at_once: usize) -> usize {
        let turn = tokio::spawn(poll_fn(move |cx| {
            let (mut bytes, mut read) = (vec![0; at_once], 0);
            loop {
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut io).poll_read(cx, &mut buffer) {
                    Poll::Ready(read_result) => read_result.unwrap(),
                    Poll::Pending => return Poll::Ready(read),
                }
                read += buffer.filled().len();
            }
        }));
        turn.await.unwrap()
    }

    #[tokio::test]
    async fn a_turn_ends_by_bytes_as_well_as_by_reads() {
        assert_eq!(read_in_one_turn(tokio::io::repeat(7), 8 << 10).await, 1 << 20);
        let unchanged = AuthorityUse::Unchanged;
        let frames = || FrameScanner::new(unchanged, Arc::new(Semaphore::new(0)), Arc::default());
        let budgeted = || BudgetedIo::new(tokio::io::repeat(7), frames(), Arc::default());
        let read = read_in_one_turn(budgeted(), 8 << 10).await;
        assert!((56 << 10..=64 << 10).contains(&read), "{read}");
        // A read larger than a turn still succeeds.
        assert_eq!(read_in_one_turn(budgeted(), 1 << 20).await, 1 << 20);
        // Small reads count once each.
        assert_eq!(read_in_one_turn(budgeted(), 100).await, 128 * 100);
    }
}
