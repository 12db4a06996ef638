//! Supervises one connection of any protocol: idle time, age, eviction, and its place in the metrics.
//!
//! Invariant: a connection on which no request begins and none is in flight for the idle time is shut down gracefully,
//! and closed soon after, whatever its peer does meanwhile (send nothing, trickle, leave responses unread). There is
//! one timer per connection, not one per request. A connection is also closed one grace period after its maximum age,
//! when nothing of its unread responses was sent for the idle time, when too many of its streams were evicted, and at
//! once when other connections need the memory of its unread responses. On a small listener the connection that has
//! been silent longest is closed when another one needs its place. When a listener has too many large connections, the
//! one that has been silent longest is shut down gracefully. When the service closes, all connections are shut down
//! gracefully. One that is then idle for `CLOSING_IDLE_TIME` is closed: its peer may never react.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use tidegate::observe::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::{ConnectionAge, EndpointAddress};
use crate::net::large_connections::{LargeConnections, LargeKind};
use crate::net::peer_limit::PeerPermit;
use crate::net::silent_connections::{SilentGuard, TurnProgress};
use crate::net::unread_responses::{RESPONSE_BYTES, TurnEnd, UnreadCause, UnreadGuard, UnreadResponses};
use crate::net::waiting_streams::{ConnectionStreams, WaitingStreams};
use crate::net::{ConnectionUnread, ShutdownPhase};

/// The idle time is counted in quarters. A connection is shut down gracefully when all quarters have passed since its
/// last request, and closed one quarter later. A request itself reads no clock.
const QUARTERS: u32 = 4;

/// How long a connection may be idle while the service closes. By then a peer that reads has seen that it should close.
const CLOSING_IDLE_TIME: Duration = Duration::from_secs(1);

/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// How long a connection may be idle.
    pub(crate) idle: Duration,
    /// Maximum age, if there is one.
    pub(crate) age: Option<ConnectionAge>,
    /// How long a connection may take until its first request has begun, if that is less than `idle`.
    pub(crate) first_request: Option<Duration>,
}

impl ConnectionAge {
    /// The maximum age of this connection.
    fn jittered(self) -> Duration {
        let mut jitter = [128];
        // Without randomness all connections get the same age, which is acceptable.
        let _ = getrandom::fill(&mut jitter);
        self.max * (230 + u32::from(jitter[0]) / 5) / 256
    }
}

/// State that a connection holds until it ends.
pub(crate) struct ConnectionContext {
    pub(crate) limits: ConnectionLimits,
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) peer_permit: Option<PeerPermit>,
    pub(crate) _in_flight: mpsc::Sender<()>,
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    pub(crate) metrics: Arc<Metrics>,
    /// The waiting HTTP/2 streams of its listener.
    pub(crate) waiting_streams: Arc<WaitingStreams>,
    /// Permits for the connections of its listener that wait for the rest of a head.
    pub(crate) unfinished_heads: Arc<Semaphore>,
    /// The connections of its listener with unread responses.
    pub(crate) unread: Arc<UnreadResponses>,
    /// Its entry among the connections of a small listener.
    pub(crate) silent: Option<SilentGuard>,
    /// The large connections of its listener.
    pub(crate) large: Arc<LargeConnections>,
}

/// The table from which a connection may be evicted.
enum EvictionState {
    /// None.
    Unplaced,
    /// The connections of a small listener.
    Small(SilentGuard),
    /// The large connections of its listener.
    Large(LargeKind, SilentGuard),
    /// The large connections that are shutting down.
    Leaving(SilentGuard),
}

impl EvictionState {
    /// Registers a connection that has become large. Large connections stay registered.
    fn update_size(&mut self, activity: &Activity, large: &LargeConnections) {
        let known = match self {
            EvictionState::Unplaced => None,
            EvictionState::Large(kind, _) => Some(*kind),
            EvictionState::Small(_) | EvictionState::Leaving(_) => return,
        };
        if let Some(kind) = activity.large_kind().filter(|kind| Some(*kind) > known) {
            *self = EvictionState::Large(kind, large.register(kind));
        }
    }
}

/// Counts a connection as open until it is dropped. A panic drops it too.
struct OpenConnection(Arc<Metrics>);

impl OpenConnection {
    fn count(metrics: &Arc<Metrics>) -> Self {
        metrics.connections_accepted.inc();
        metrics.connections.inc();
        OpenConnection(Arc::clone(metrics))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// The state of a connection's requests that its supervisor needs.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    in_flight: AtomicU32,
    leaving: AtomicBool,
    /// Unread responses of the connection.
    pub(crate) unread: Arc<ConnectionUnread>,
    /// Streams of the connection.
    pub(crate) streams: Arc<ConnectionStreams>,
}

/// A request in flight, until it is dropped.
pub(crate) struct RequestInFlight<'a>(&'a Activity);

impl Activity {
    /// Begins a request.
    pub(crate) fn begin(&self) -> RequestInFlight<'_> {
        self.begun.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        RequestInFlight(self)
    }

    /// Begins work that does not count as a request.
    pub(crate) fn begin_uncounted(&self) -> RequestInFlight<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        RequestInFlight(self)
    }

    /// Why the connection is large, if it is. Unread responses count like streams.
    fn large_kind(&self) -> Option<LargeKind> {
        if self.streams.held_blocks() > LargeKind::MIN_BLOCKS {
            return Some(LargeKind::Blocks);
        }
        let streams = self.streams.max_open();
        let max_unread = LargeKind::MIN_STREAMS * RESPONSE_BYTES;
        let many = streams > LargeKind::MIN_STREAMS || streams > 0 && self.unread.bytes() > max_unread;
        many.then_some(LargeKind::Streams)
    }

    /// Ends a turn of a connection that may be evicted.
    fn end_turn(&self, guard: &SilentGuard, waker: &Waker) -> TurnEnd {
        let progress = TurnProgress { requests: self.begun.load(Relaxed), sent: self.unread.progress() };
        guard.end_turn(progress, self.in_flight.load(Relaxed) > 0, waker)
    }

    /// Whether the service is shutting down and clients should reconnect elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Why a connection is evicted.
enum Eviction {
    /// Its responses are not read.
    Unread,
    /// Too many of its streams were evicted.
    Streams,
    /// It has been silent longer than the other connections of its listener.
    Silent,
    /// It is large and has been silent longer than the other large connections.
    Large,
    /// Its graceful shutdown has not ended in time.
    Leaving,
}

/// How long a connection has been silent, in quarters of the idle time.
#[derive(Default)]
struct SilenceCounter {
    begun: u64,
    sent: usize,
    /// Quarters in which nothing began, nothing was in flight and nothing was sent.
    still: u32,
    /// Quarters in which unread responses existed and nothing was sent.
    unread: u32,
}

impl SilenceCounter {
    /// Counts the last quarter.
    fn next_quarter(&mut self, activity: &Activity) -> u32 {
        let begun = activity.begun.load(Relaxed);
        let sent = activity.unread.progress();
        let nothing_sent = sent == self.sent;
        let is_still = nothing_sent && begun == self.begun && activity.in_flight.load(Relaxed) == 0;
        let is_unread = nothing_sent && activity.unread.bytes() > 0;
        let count = |quarters: u32, goes_on: bool| if goes_on { quarters + 1 } else { 0 };
        *self =
            SilenceCounter { begun, sent, still: count(self.still, is_still), unread: count(self.unread, is_unread) };
        self.still.max(self.unread)
    }
}

/// Watches a connection while the service closes.
struct ClosingWatch {
    silence: SilenceCounter,
    /// On the heap, so that connections in normal service do not carry its size.
    tick: Pin<Box<Sleep>>,
}

impl ClosingWatch {
    fn begin(activity: &Activity) -> Self {
        let mut silence = SilenceCounter::default();
        silence.next_quarter(activity);
        silence.still = 0;
        ClosingWatch { silence, tick: Box::pin(sleep(CLOSING_IDLE_TIME)) }
    }

    /// Waits until the connection has been idle for a moment: nothing is in flight, and nothing is left to send.
    /// Cancel-safe.
    async fn until_idle(&mut self, activity: &Activity) {
        loop {
            self.tick.as_mut().await;
            self.silence.next_quarter(activity);
            if self.silence.still > 0 && activity.unread.bytes() == 0 {
                return;
            }
            self.tick.as_mut().reset(Instant::now() + CLOSING_IDLE_TIME);
        }
    }
}

/// Waits until a closing connection is idle. Never completes for a connection that is not closing.
async fn idle_while_closing(closing: Option<&mut ClosingWatch>, activity: &Activity) {
    match closing {
        Some(closing) => closing.until_idle(activity).await,
        None => std::future::pending().await,
    }
}

/// Polls `connection` to its end and returns its output, or `None` if it was closed early. `finish` makes the
/// connection end after the responses to all requests that it has read.
pub(crate) async fn supervise<C: Future>(
    mut connection: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    peer: &EndpointAddress,
    mut context: ConnectionContext,
) -> Option<C::Output> {
    let limits = context.limits;
    let open = OpenConnection::count(&context.metrics);
    // The phase may have changed before this connection began.
    let phase = *context.phase.borrow_and_update();
    activity.leaving.store(phase != ShutdownPhase::Serving, Relaxed);
    let mut eviction_state = match context.silent.take() {
        Some(guard) => EvictionState::Small(guard),
        None => EvictionState::Unplaced,
    };
    let quarter = limits.idle / QUARTERS;
    let mut first_request = limits.first_request.filter(|time| *time < limits.idle);
    let mut tick = pin!(sleep(first_request.unwrap_or(quarter)));
    let mut age_timer = pin!(sleep(limits.age.map_or(NEVER, ConnectionAge::jittered)));
    let mut is_aged = false;
    let mut silence = SilenceCounter::default();
    let mut closing = None;
    if phase == ShutdownPhase::Closing {
        closing = Some(ClosingWatch::begin(activity));
        finish(connection.as_mut());
    }
    let listener_unread = Arc::clone(&context.unread);
    let mut unread_guard = UnreadGuard::new(&listener_unread, &activity.unread);
    let cut_off = |cause| {
        let bytes = activity.unread.bytes();
        if bytes > 0 {
            listener_unread.record_closed(cause, peer, bytes);
        }
    };
    loop {
        let is_closing = closing.is_some();
        tokio::select! {
            biased;
            ended = connection.as_mut() => break Some(ended),
            // At this point the connection has done all it can for now.
            eviction = poll_fn(|cx| {
                if unread_guard.end_turn(cx.waker()) == TurnEnd::Evicted {
                    return Poll::Ready(Eviction::Unread);
                }
                if activity.streams.must_close() {
                    return Poll::Ready(Eviction::Streams);
                }
                eviction_state.update_size(activity, &context.large);
                let (guard, eviction) = match &eviction_state {
                    EvictionState::Unplaced => return Poll::Pending,
                    EvictionState::Small(guard) => (guard, Eviction::Silent),
                    EvictionState::Large(_, guard) => (guard, Eviction::Large),
                    EvictionState::Leaving(guard) => (guard, Eviction::Leaving),
                };
                if activity.end_turn(guard, cx.waker()) == TurnEnd::Evicted {
                    return Poll::Ready(eviction);
                }
                Poll::Pending
            }) => match eviction {
                Eviction::Unread => {
                    cut_off(UnreadCause::Memory);
                    break None;
                }
                Eviction::Streams => break None,
                Eviction::Silent => {
                    open.0.network.silent_evicted.inc();
                    break None;
                }
                Eviction::Large => {
                    open.0.network.silent_evicted.inc();
                    eviction_state = EvictionState::Leaving(context.large.register_leaving());
                    finish(connection.as_mut());
                }
                Eviction::Leaving => break None,
            },
            () = tick.as_mut() => {
                if first_request.take().is_some() && activity.begun.load(Relaxed) == 0 {
                    open.0.connections_timed_out.inc();
                    break None;
                }
                let quarters = silence.next_quarter(activity);
                if quarters == QUARTERS {
                    open.0.connections_timed_out.inc();
                    finish(connection.as_mut());
                } else if quarters > QUARTERS {
                    cut_off(UnreadCause::Idle);
                    break None;
                }
                tick.as_mut().reset(Instant::now() + quarter);
            }
            () = age_timer.as_mut() => {
                let Some(age) = limits.age.filter(|_| !is_aged) else { break None };
                is_aged = true;
                finish(connection.as_mut());
                age_timer.as_mut().reset(Instant::now() + age.grace);
            }
            () = idle_while_closing(closing.as_mut(), activity) => break None,
            changed = context.phase.changed(), if !is_closing => {
                activity.leaving.store(true, Relaxed);
                if changed.is_err() || *context.phase.borrow_and_update() == ShutdownPhase::Closing {
                    closing = Some(ClosingWatch::begin(activity));
                    finish(connection.as_mut());
                }
            }
        }
    }
}
