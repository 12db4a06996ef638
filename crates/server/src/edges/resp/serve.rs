//! The connections of this edge: read what has come, decide it in one pass, send all answers in one
//! write, and wait.
//!
//! Kept true: nothing more is read before the answers to what was read are sent, so a client that does
//! not read its answers is not read from. An idle connection holds no buffer. At the end what has come
//! is answered before the connection closes. Unfinished commands and queues are bounded per listener, with unread
//! replies.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::Family;
use tidegate_core::algorithms::Precision;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::has_budget_remaining;
use tokio::time::{sleep, timeout};
use tracing::{debug, error};

use super::buffers::{BACKLOG, Buffers, ROOM};
use super::guesses::Guesses;
use super::pass::{Then, pass};
use super::session::Session;
use super::throttle::Dialect;
use crate::address::Place;
use crate::net::connection::caught;
use crate::net::listener::Door;
use crate::net::unread::ConnectionUnread;
use crate::net::watch::{self, Activity, Guards, Keeping};
use crate::service::Service;

pub(crate) use super::password::Password;

/// What a connection that is told to end still takes: all that clients usually have in flight.
const LAST_BYTES: usize = 64 * BACKLOG;

/// How long a connection that was ended here waits for the client to see it.
const LINGER: Duration = Duration::from_secs(1);

/// The listener for Redis clients.
#[derive(Clone)]
pub(crate) struct Resp(Arc<Shared>);

struct Shared {
    service: Arc<Service>,
    password: Option<Password>,
    precision: Precision,
    cell: Family,
    crab: Family,
    connections: AtomicU64,
    guesses: Guesses,
}

impl Resp {
    /// Decides by `service`, whose store counts with `precision`.
    pub(crate) fn new(
        service: Arc<Service>,
        password: Option<Password>,
        precision: Precision,
    ) -> Self {
        Resp(Arc::new(Shared {
            service,
            password,
            precision,
            cell: Family::new(Dialect::Cell.family()),
            crab: Family::new(Dialect::Crab.family()),
            connections: AtomicU64::new(1),
            guesses: Guesses::default(),
        }))
    }

    pub(super) fn service(&self) -> &Service {
        &self.0.service
    }

    pub(super) fn password(&self) -> Option<&Password> {
        self.0.password.as_ref()
    }

    /// Holds up a client that is not authenticated and whose peer guesses passwords.
    async fn wait_after_guesses(&self, session: &Session, peer: &Place) {
        if !session.admitted
            && let Some(delay) = self.0.guesses.delay(peer)
        {
            sleep(delay).await;
        }
    }

    pub(super) fn precision(&self) -> Precision {
        self.0.precision
    }

    pub(super) fn family(&self, dialect: Dialect) -> &Family {
        match dialect {
            Dialect::Cell => &self.0.cell,
            Dialect::Crab => &self.0.crab,
        }
    }
}

impl Door for Resp {
    async fn serve<I>(self, io: I, peer: Place, keeping: Keeping, guards: Guards)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (activity, ending) = (Activity::default(), AtomicBool::new(false));
        let metrics = Arc::clone(&guards.metrics);
        let talking = pin!(talk(io, &peer, &self, &activity, &ending));
        let conversation = pin!(caught(talking));
        let finish = |_: Pin<&mut _>| ending.store(true, Relaxed);
        match watch::over(conversation, finish, &activity, &peer, keeping, guards).await {
            Some(Some(Err(error))) => debug!(%error, "connection ended badly"),
            Some(None) => {
                metrics.panics.inc();
                error!("handling a command panicked");
            }
            Some(Some(Ok(()))) | None => {}
        }
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.0.service.reading().trusts(peer)
    }
}

async fn talk<I>(
    mut io: I,
    peer: &Place,
    resp: &Resp,
    activity: &Activity,
    ending: &AtomicBool,
) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let id = resp.0.connections.fetch_add(1, Relaxed);
    let mut session = Session::new(id, resp.password().is_some());
    // The beginning of a command whose rest has not come.
    let mut begun = Vec::new();
    let mut last_bytes = LAST_BYTES;
    loop {
        resp.wait_after_guesses(&session, peer).await;
        // What waits for the rest of a command or for `EXEC` counts with what the client does not read.
        let waiting = begun.capacity() + session.queued_bytes();
        activity.unread.hold(waiting);
        let received = receive(&mut io, &begun, ending).await?;
        activity.unread.release(waiting);
        let Some((mut buffers, came)) = received else {
            break;
        };
        let wrong_passwords = session.wrong_passwords;
        let mut from = 0;
        let in_flight = activity.hold();
        let then = loop {
            let (input, output) = buffers.split(from);
            let passed = (resp.service()).wait_for(pass(resp, &mut session, input, output));
            let passed = passed.await;
            from += passed.bytes;
            if !buffers.output.is_empty() {
                drop(activity.begin());
                let held = buffers.bytes();
                activity.unread.hold(held);
                send(&mut io, &buffers.output, &activity.unread).await?;
                activity.unread.release(held);
                buffers.output.clear();
            }
            if passed.then != Then::GoOn {
                break passed.then;
            }
        };
        drop(in_flight);
        keep(&mut begun, buffers.split(from).0);
        buffers.give_back();
        for _ in wrong_passwords..session.wrong_passwords {
            let metrics = &resp.service().metrics.network;
            resp.0.guesses.record_wrong(peer, metrics);
        }
        if ending.load(Relaxed) {
            last_bytes = last_bytes.saturating_sub(came);
        }
        if then == Then::Close {
            io.shutdown().await?;
            return discard(&mut io).await;
        }
        if last_bytes == 0 {
            break;
        }
        if came >= ROOM / 2 {
            // There is likely more, and others wait too.
            tokio::task::yield_now().await;
        }
    }
    io.shutdown().await
}

/// Sends replies. Every part that the peer reads is progress.
async fn send<I: AsyncWrite + Unpin>(
    io: &mut I,
    mut replies: &[u8],
    unread: &ConnectionUnread,
) -> io::Result<()> {
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

/// Reads what is still coming and forgets it, for a moment: closed over bytes that nobody has read, a
/// connection takes the last answer with it.
async fn discard<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<()> {
    let (mut rest, mut nowhere) = (io.take(LAST_BYTES as u64), tokio::io::sink());
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    match timeout(LINGER, read).await {
        Ok(read) => read.map(drop),
        Err(_) => Ok(()),
    }
}

/// Keeps the beginning of a command in no more room than it needs.
fn keep(begun: &mut Vec<u8>, rest: &[u8]) {
    begun.clear();
    if begun.capacity() > 2 * rest.len() {
        *begun = Vec::new();
    }
    begun.extend_from_slice(rest);
}

/// Waits for bytes, and gives them behind those that `begun` holds already; nothing at the end.
async fn receive<I: AsyncRead + Unpin>(
    io: &mut I,
    begun: &[u8],
    ending: &AtomicBool,
) -> io::Result<Option<(Buffers, usize)>> {
    poll_fn(|context| {
        let mut buffers = Buffers::lend();
        match read(io, buffers.room_behind(begun.len()), context) {
            Poll::Ready(Ok(0)) => {
                buffers.give_back();
                Poll::Ready(Ok(None))
            }
            Poll::Ready(Ok(came)) => {
                buffers.fill(begun, came);
                Poll::Ready(Ok(Some((buffers, came))))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                buffers.give_back();
                // A task that has used up its turn is told to wait even where bytes are there.
                match ending.load(Relaxed) && has_budget_remaining() {
                    true => Poll::Ready(Ok(None)),
                    false => Poll::Pending,
                }
            }
        }
    })
    .await
}

fn read<I: AsyncRead + Unpin>(
    io: &mut I,
    room: &mut [u8],
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(room);
    let read = Pin::new(io).poll_read(context, &mut room);
    read.map_ok(|()| room.filled().len())
}
