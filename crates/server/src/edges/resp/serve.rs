//! The connections of this edge: read input, decide it in one pass, send all replies in one write, and wait.
//!
//! Invariant: no more input is read before the replies to earlier input are sent, so a client that does not read its
//! replies is not read from. An idle connection holds no buffer. On shutdown the input that has arrived gets its
//! replies before the connection closes. Unfinished commands and queues are bounded per listener, together with unread
//! replies.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::KeyFamily;
use tidegate_core::algorithms::Precision;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::has_budget_remaining;
use tokio::time::{sleep, timeout};
use tracing::{debug, error};

use super::buffers::{Buffers, INPUT_BYTES, OUTPUT_BYTES};
use super::password_guesses::PasswordGuesses;
use super::pipeline::{NextStep, run_pipeline};
use super::session::Session;
use super::throttle::ThrottleDialect;
use crate::config::EndpointAddress;
use crate::decider::Decider;
use crate::net::connection::catch_panic;
use crate::net::supervisor;
use crate::net::{Activity, ConnectionContext, ConnectionHandler, ConnectionIo, ConnectionUnread};

pub(crate) use super::password::RespPassword;

/// Input that a connection still handles during shutdown: all that clients usually have in flight.
const MAX_DRAIN_BYTES: usize = 64 * OUTPUT_BYTES;

/// How long a closed connection waits for the client to close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct RespListener(Arc<RespState>);

/// What all connections of the listener share.
pub(super) struct RespState {
    pub(super) decider: Arc<Decider>,
    pub(super) password: Option<RespPassword>,
    pub(super) precision: Precision,
    redis_cell_family: KeyFamily,
    throttlecrab_family: KeyFamily,
    connections: AtomicU64,
    guesses: PasswordGuesses,
}

impl RespListener {
    /// A listener for `decider`, whose store counts with `precision`.
    pub(crate) fn new(decider: Arc<Decider>, password: Option<RespPassword>, precision: Precision) -> Self {
        RespListener(Arc::new(RespState {
            decider,
            password,
            precision,
            redis_cell_family: KeyFamily::new(ThrottleDialect::RedisCell.family()),
            throttlecrab_family: KeyFamily::new(ThrottleDialect::Throttlecrab.family()),
            connections: AtomicU64::new(1),
            guesses: PasswordGuesses::default(),
        }))
    }
}

impl RespState {
    pub(super) fn family(&self, dialect: ThrottleDialect) -> &KeyFamily {
        match dialect {
            ThrottleDialect::RedisCell => &self.redis_cell_family,
            ThrottleDialect::Throttlecrab => &self.throttlecrab_family,
        }
    }
}

impl ConnectionHandler for RespListener {
    async fn serve<I: ConnectionIo>(self, io: I, peer: EndpointAddress, context: ConnectionContext) {
        let (activity, ending) = (Activity::default(), AtomicBool::new(false));
        let metrics = Arc::clone(&context.metrics);
        let serving = pin!(serve_connection(io, &peer, &self.0, &activity, &ending));
        let guarded = pin!(catch_panic(serving));
        let finish = |_: Pin<&mut _>| ending.store(true, Relaxed);
        match supervisor::supervise(guarded, finish, &activity, &peer, context).await {
            Some(Some(Err(error))) => debug!(%error, "connection failed"),
            Some(None) => {
                metrics.panics.inc();
                error!("command handler panicked");
            }
            Some(Some(Ok(()))) | None => {}
        }
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.0.decider.trusts(peer)
    }
}

async fn serve_connection<I: ConnectionIo>(
    mut io: I,
    peer: &EndpointAddress,
    resp: &RespState,
    activity: &Activity,
    ending: &AtomicBool,
) -> io::Result<()> {
    let id = resp.connections.fetch_add(1, Relaxed);
    let mut session = Session::new(id, resp.password.is_some());
    // The beginning of an incomplete command.
    let mut partial = Vec::new();
    let mut drain_bytes_left = MAX_DRAIN_BYTES;
    loop {
        if !session.authenticated
            && let Some(delay) = resp.guesses.delay(peer)
        {
            sleep(delay).await;
        }
        // Incomplete commands and commands that wait for `EXEC` count with the unread replies.
        let waiting = partial.capacity() + session.queued_bytes();
        activity.unread.hold(waiting);
        let received = receive(&mut io, &partial, ending).await?;
        activity.unread.release(waiting);
        let Some((mut buffers, received_bytes)) = received else {
            break;
        };
        let wrong_passwords = session.wrong_passwords;
        let mut from = 0;
        let in_flight = activity.begin_uncounted();
        let next = loop {
            let (input, output) = buffers.split(from);
            let progress = resp.decider.run(run_pipeline(resp, &mut session, input, output)).await;
            from += progress.bytes;
            if !buffers.output.is_empty() {
                drop(activity.begin());
                let held_bytes = buffers.bytes();
                activity.unread.hold(held_bytes);
                send(&mut io, &buffers.output, &activity.unread).await?;
                activity.unread.release(held_bytes);
                buffers.output.clear();
            }
            if progress.next != NextStep::Continue {
                break progress.next;
            }
        };
        drop(in_flight);
        store_partial(&mut partial, buffers.split(from).0);
        buffers.recycle();
        for _ in wrong_passwords..session.wrong_passwords {
            resp.guesses.record_wrong(peer, resp.decider.network_metrics());
        }
        if ending.load(Relaxed) {
            drain_bytes_left = drain_bytes_left.saturating_sub(received_bytes);
        }
        if next == NextStep::Close {
            io.shutdown().await?;
            return discard(&mut io).await;
        }
        if drain_bytes_left == 0 {
            break;
        }
        if received_bytes >= INPUT_BYTES / 2 {
            // There is likely more input, and other connections wait too.
            tokio::task::yield_now().await;
        }
    }
    io.shutdown().await
}

/// Sends replies. Every part that the peer reads is progress.
async fn send<I: AsyncWrite + Unpin>(io: &mut I, mut replies: &[u8], unread: &ConnectionUnread) -> io::Result<()> {
    while !replies.is_empty() {
        let written = io.write(replies).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        unread.record_sent(written);
        replies = &replies[written..];
    }
    Ok(())
}

/// Reads and discards further input for a moment: a connection that is closed over unread bytes is reset, and the reset
/// destroys the last reply.
async fn discard<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<()> {
    let (mut rest, mut nowhere) = (io.take(MAX_DRAIN_BYTES as u64), tokio::io::sink());
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    match timeout(LINGER_TIMEOUT, read).await {
        Ok(read) => read.map(drop),
        Err(_) => Ok(()),
    }
}

/// Stores the beginning of a command in no more memory than it needs.
fn store_partial(partial: &mut Vec<u8>, rest: &[u8]) {
    partial.clear();
    if partial.capacity() > 2 * rest.len() {
        *partial = Vec::new();
    }
    partial.extend_from_slice(rest);
}

/// Waits for input and returns it behind the bytes in `partial`. `None` at the end of the input.
async fn receive<I: AsyncRead + Unpin>(
    io: &mut I,
    partial: &[u8],
    ending: &AtomicBool,
) -> io::Result<Option<(Buffers, usize)>> {
    poll_fn(|context| {
        let mut buffers = Buffers::acquire();
        match read(io, buffers.space_after(partial.len()), context) {
            Poll::Ready(Ok(0)) => {
                buffers.recycle();
                Poll::Ready(Ok(None))
            }
            Poll::Ready(Ok(received_bytes)) => {
                buffers.fill(partial, received_bytes);
                Poll::Ready(Ok(Some((buffers, received_bytes))))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                buffers.recycle();
                // A task that has used up its budget gets `Pending` even where there are bytes.
                if ending.load(Relaxed) && has_budget_remaining() { Poll::Ready(Ok(None)) } else { Poll::Pending }
            }
        }
    })
    .await
}

fn read<I: AsyncRead + Unpin>(io: &mut I, space: &mut [u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let mut space = ReadBuf::new(space);
    let read = Pin::new(io).poll_read(context, &mut space);
    read.map_ok(|()| space.filled().len())
}
