//! The watch over one connection, whatever is spoken on it: its silence, its end, its place in the
//! numbers.
//!
//! Kept true: a connection on which nothing begins and nothing is under way for the idle time is asked
//! to finish and cut off soon after, whatever it is doing meanwhile (sending nothing, trickling,
//! not reading its answers). It is one timer per connection, not one per request. One that has reached
//! its age is asked to finish too, and cut off when its grace has passed. One that holds responses of which
//! nothing was sent for the idle time is cut off too, whatever else its peer sends, and at once if others
//! need the memory of its responses. One that has lost many streams to others is cut
//! off too, and on a small listener the one that has been silent longest when others need its place. A large
//! one that has been silent longest is asked to finish when there are too many of them. When the service closes, all are
//! asked to finish, and one that is then idle for `CLOSING_IDLE_TIME` is cut off: its peer may never react.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use tidegate::observe::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep};

use crate::listen_address::EndpointAddress;
use crate::net::large_connections::{LargeConnections, LargeKind};
use crate::net::peer_limit::PeerPermit;
use crate::net::silent_connections::{SilentGuard, TurnProgress};
use crate::net::unread_responses::{
    ConnectionUnread, RESPONSE_BYTES, TurnEnd, UnreadCause, UnreadGuard, UnreadResponses,
};
use crate::net::waiting_streams::{ConnectionStreams, WaitingStreams};
use crate::shutdown::ShutdownPhase;

/// The idle time is counted in so many parts: a connection is asked to close when that many have
/// passed since its last request, and cut off one part later. A request itself reads no clock.
const QUARTERS: u32 = 4;

/// How long a connection may be idle while the service closes. A peer that reads has seen by then that it should close.
const CLOSING_IDLE_TIME: Duration = Duration::from_secs(1);

/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How connections are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// How long one may send nothing.
    pub(crate) idle: Duration,
    /// How old one gets, if there is an end to it.
    pub(crate) age: Option<ConnectionAge>,
    /// How long one may take until its first request has begun, if that is less than `idle`.
    pub(crate) first_request: Option<Duration>,
}

/// How old a connection gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionAge {
    /// Then it is asked to close; each a tenth sooner or later, so that not all come back at once.
    pub(crate) max: Duration,
    /// How long after that what is under way may take.
    pub(crate) grace: Duration,
}

impl ConnectionAge {
    /// How old this one gets.
    fn jittered(self) -> Duration {
        let mut jitter = [128];
        // Without randomness all of them are of the same age, which is bearable.
        let _ = getrandom::fill(&mut jitter);
        self.max * (230 + u32::from(jitter[0]) / 5) / 256
    }
}

/// What a connection holds until it is finished.
pub(crate) struct ConnectionContext {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) peer_permit: Option<PeerPermit>,
    pub(crate) _in_flight: mpsc::Sender<()>,
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    pub(crate) metrics: Arc<Metrics>,
    /// The waiting HTTP/2 streams of its listener.
    pub(crate) waiting_streams: Arc<WaitingStreams>,
    /// Room for the connections of its listener that wait for the rest of a head.
    pub(crate) unfinished_heads: Arc<Semaphore>,
    /// The connections of its listener whose responses are not read.
    pub(crate) unread: Arc<UnreadResponses>,
    /// Its place among the connections of a small listener.
    pub(crate) silent: Option<SilentGuard>,
    /// The large connections of its listener.
    pub(crate) large: Arc<LargeConnections>,
}

/// Where a connection has a place that it may lose to another.
enum EvictionState {
    /// Nowhere.
    Unplaced,
    /// Among the connections of a small listener.
    Small(SilentGuard),
    /// Among the large ones of its listener.
    Large(LargeKind, SilentGuard),
    /// Among those that were large and have to leave.
    Leaving(SilentGuard),
}

impl EvictionState {
    /// Gives a connection that has become large its place among the large ones. Once there it stays.
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

/// A connection that is counted as open, until this is dropped. A panic drops it too.
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

/// What the watch over a connection needs to know about its requests.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    in_flight: AtomicU32,
    leaving: AtomicBool,
    /// What the connection holds for its peer.
    pub(crate) unread: Arc<ConnectionUnread>,
    /// What is known about its streams.
    pub(crate) streams: Arc<ConnectionStreams>,
}

/// A request under way, until it is dropped.
pub(crate) struct RequestInFlight<'a>(&'a Activity);

impl Activity {
    /// A request begins.
    pub(crate) fn begin(&self) -> RequestInFlight<'_> {
        self.begun.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        RequestInFlight(self)
    }

    /// Work is in flight that does not count as a request.
    pub(crate) fn begin_uncounted(&self) -> RequestInFlight<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        RequestInFlight(self)
    }

    /// What makes it large, if it is. As many responses that are not read count as many streams.
    fn large_kind(&self) -> Option<LargeKind> {
        if self.streams.held_blocks() > LargeKind::MIN_BLOCKS {
            return Some(LargeKind::Blocks);
        }
        let streams = self.streams.max_open();
        let max_unread = LargeKind::MIN_STREAMS * RESPONSE_BYTES;
        let many =
            streams > LargeKind::MIN_STREAMS || streams > 0 && self.unread.bytes() > max_unread;
        many.then_some(LargeKind::Streams)
    }

    /// Ends a turn of a connection that has a place which it may lose.
    fn end_turn(&self, place: &SilentGuard, waker: &Waker) -> TurnEnd {
        let progress = TurnProgress {
            requests: self.begun.load(Relaxed),
            sent: self.unread.progress(),
        };
        place.end_turn(progress, self.in_flight.load(Relaxed) > 0, waker)
    }

    /// Whether the service is about to end, and would rather be left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Why a connection has to make room for others.
enum Eviction {
    /// Its responses are not read.
    Unread,
    /// Too many of its streams were evicted.
    Streams,
    /// It has been silent for longer than the others of its listener.
    Silent,
    /// It is large and has been silent for longer than the other large ones.
    Large,
    /// It was asked to leave and has not left.
    Leaving,
}

/// How long a connection has been silent, in quarters of the idle time.
#[derive(Default)]
struct SilenceCounter {
    begun: u64,
    sent: usize,
    /// Quarters in which nothing began, nothing was in flight and nothing was sent.
    still: u32,
    /// Quarters in which nothing was sent of what there is to send.
    unread: u32,
}

impl SilenceCounter {
    /// Looks at what the last quarter has brought.
    fn next_quarter(&mut self, activity: &Activity) -> u32 {
        let begun = activity.begun.load(Relaxed);
        let sent = activity.unread.progress();
        let nothing_sent = sent == self.sent;
        let is_still = nothing_sent && begun == self.begun && activity.in_flight.load(Relaxed) == 0;
        let is_unread = nothing_sent && activity.unread.bytes() > 0;
        let count = |quarters: u32, goes_on: bool| if goes_on { quarters + 1 } else { 0 };
        *self = SilenceCounter {
            begun,
            sent,
            still: count(self.still, is_still),
            unread: count(self.unread, is_unread),
        };
        self.still.max(self.unread)
    }
}

/// The watch over a connection while the service closes.
struct ClosingWatch {
    silence: SilenceCounter,
    /// On the heap, so that a connection that is served has no room for it.
    tick: Pin<Box<Sleep>>,
}

impl ClosingWatch {
    fn begin(activity: &Activity) -> Self {
        let mut silence = SilenceCounter::default();
        silence.next_quarter(activity);
        silence.still = 0;
        ClosingWatch {
            silence,
            tick: Box::pin(sleep(CLOSING_IDLE_TIME)),
        }
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

/// Waits until a connection that is closing is idle, and for ever if it is not closing.
async fn idle_while_closing(closing: Option<&mut ClosingWatch>, activity: &Activity) {
    match closing {
        Some(closing) => closing.until_idle(activity).await,
        None => std::future::pending().await,
    }
}

/// Lets `connection` go on to its end, and gives what it ends with unless it is cut off. `finish` asks
/// it to end once it has answered what it has read.
pub(crate) async fn supervise<C: Future>(
    mut connection: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    peer: &EndpointAddress,
    limits: ConnectionLimits,
    mut context: ConnectionContext,
) -> Option<C::Output> {
    let open = OpenConnection::count(&context.metrics);
    // The change itself may have come before this connection.
    let phase = *context.phase.borrow_and_update();
    activity
        .leaving
        .store(phase != ShutdownPhase::Serving, Relaxed);
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
            // Here the conversation has done all it can for now.
            eviction = poll_fn(|cx| {
                if unread_guard.end_turn(cx.waker()) == TurnEnd::Evicted {
                    return Poll::Ready(Eviction::Unread);
                }
                if activity.streams.must_close() {
                    return Poll::Ready(Eviction::Streams);
                }
                eviction_state.update_size(activity, &context.large);
                let (place, eviction) = match &eviction_state {
                    EvictionState::Unplaced => return Poll::Pending,
                    EvictionState::Small(place) => (place, Eviction::Silent),
                    EvictionState::Large(_, place) => (place, Eviction::Large),
                    EvictionState::Leaving(place) => (place, Eviction::Leaving),
                };
                if activity.end_turn(place, cx.waker()) == TurnEnd::Evicted {
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
