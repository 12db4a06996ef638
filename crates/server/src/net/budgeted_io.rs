//! Keeps one connection from holding a thread: how much of it is read in one turn is bounded.
//!
//! The runtime counts reads, and a turn ends after 128 of them. But one read may bring thousands of
//! frames, each of which is work, so a flood of them had turns of a tenth of a second, for which all
//! others waited. Here a read counts as often as it brings [`BUDGET_UNIT_BYTES`] bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::frame_scanner::FrameScanner;
use super::unread_responses::ConnectionUnread;

/// What one read may bring. A turn has 128 of them: 64 KiB, some thousands of the smallest frames.
const BUDGET_UNIT_BYTES: usize = 512;

/// What is read of a connection in one turn, give or take one read.
#[cfg(test)]
pub(crate) const TURN_BYTES: usize = 128 * BUDGET_UNIT_BYTES;

/// A connection that takes turns with others.
pub(crate) struct BudgetedIo<I> {
    io: I,
    frames: FrameScanner,
    unread: Arc<ConnectionUnread>,
}

impl<I> BudgetedIo<I> {
    /// What is read is shown to `frames`, and `unread` learns whether the socket takes what is written.
    pub(crate) fn new(io: I, frames: FrameScanner, unread: Arc<ConnectionUnread>) -> Self {
        BudgetedIo { io, frames, unread }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for BudgetedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.frames.scan(&mut buffer.filled_mut()[before..])?;
        for _ in 0..(buffer.filled().len() - before) / BUDGET_UNIT_BYTES {
            match coop::poll_proceed(cx) {
                Poll::Ready(unit) => unit.made_progress(),
                // The turn is over, and the next read will say so.
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for BudgetedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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

    /// How much comes of a connection that always has more, before others have their turn.
    async fn read_in_one_turn(
        mut io: impl AsyncRead + Unpin + Send + 'static,
        at_once: usize,
    ) -> usize {
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
        assert_eq!(
            read_in_one_turn(tokio::io::repeat(7), 8 << 10).await,
            1 << 20
        );
        let unchanged = AuthorityUse::Unchanged;
        let frames = || FrameScanner::new(unchanged, Arc::new(Semaphore::new(0)), Arc::default());
        let budgeted = || BudgetedIo::new(tokio::io::repeat(7), frames(), Arc::default());
        let read = read_in_one_turn(budgeted(), 8 << 10).await;
        assert!((56 << 10..=64 << 10).contains(&read), "{read}");
        // A read larger than a turn is one all the same.
        assert_eq!(read_in_one_turn(budgeted(), 1 << 20).await, 1 << 20);
        // Small ones count once each, as ever.
        assert_eq!(read_in_one_turn(budgeted(), 100).await, 128 * 100);
    }
}
