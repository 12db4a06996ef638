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
//! asked to finish, and one that is then idle for `LAST_MOMENT` is cut off: its peer may never react.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use tidegate::observe::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep};

use crate::address::Place;
use crate::drain::Phase;
use crate::net::large_connections::{LargeConnections, LargeKind};
use crate::net::peers::Seat;
use crate::net::silent_connections::{SilentPlace, TurnProgress};
use crate::net::unread::{
    ConnectionUnread, RESPONSE_BYTES, TurnEnd, UnreadCause, UnreadPlace, UnreadResponses,
};
use crate::net::waiting_streams::{ConnectionStreams, WaitingStreams};

/// The idle time is counted in so many parts: a connection is asked to close when that many have
/// passed since its last request, and cut off one part later. A request itself reads no clock.
const QUARTERS: u32 = 4;

/// How long a connection may be idle while the service closes. A peer that reads has seen by then that it should close.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How connections are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// How long one may send nothing.
    pub(crate) idle: Duration,
    /// How old one gets, if there is an end to it.
    pub(crate) age: Option<Age>,
    /// How long one may take until its first request has begun, if that is less than `idle`.
    pub(crate) first_request: Option<Duration>,
}

/// How old a connection gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Age {
    /// Then it is asked to close; each a tenth sooner or later, so that not all come back at once.
    pub(crate) most: Duration,
    /// How long after that what is under way may take.
    pub(crate) grace: Duration,
}

impl Age {
    /// How old this one gets.
    fn drawn(self) -> Duration {
        let mut chance = [128];
        // Without randomness all of them are of the same age, which is bearable.
        let _ = getrandom::fill(&mut chance);
        self.most * (230 + u32::from(chance[0]) / 5) / 256
    }
}

/// What a connection holds until it is finished.
pub(crate) struct Guards {
    pub(crate) _room: OwnedSemaphorePermit,
    pub(crate) seat: Option<Seat>,
    pub(crate) _busy: mpsc::Sender<()>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) metrics: Arc<Metrics>,
    /// The waiting HTTP/2 streams of its listener.
    pub(crate) waiting_streams: Arc<WaitingStreams>,
    /// Room for the connections of its listener that wait for the rest of a head.
    pub(crate) unfinished_heads: Arc<Semaphore>,
    /// The connections of its listener whose responses are not read.
    pub(crate) unread: Arc<UnreadResponses>,
    /// Its place among the connections of a small listener.
    pub(crate) silent: Option<SilentPlace>,
    /// The large connections of its listener.
    pub(crate) large: Arc<LargeConnections>,
}

/// Where a connection has a place that it may lose to another.
enum EvictionPlace {
    /// Nowhere.
    Unplaced,
    /// Among the connections of a small listener.
    Small(SilentPlace),
    /// Among the large ones of its listener.
    Large(LargeKind, SilentPlace),
    /// Among those that were large and have to leave.
    Leaving(SilentPlace),
}

impl EvictionPlace {
    /// Gives a connection that has become large its place among the large ones. Once there it stays.
    fn grow(&mut self, activity: &Activity, large: &LargeConnections) {
        let known = match self {
            EvictionPlace::Unplaced => None,
            EvictionPlace::Large(kind, _) => Some(*kind),
            EvictionPlace::Small(_) | EvictionPlace::Leaving(_) => return,
        };
        if let Some(kind) = activity.large_kind().filter(|kind| Some(*kind) > known) {
            *self = EvictionPlace::Large(kind, large.enter(kind));
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
    under_way: AtomicU32,
    leaving: AtomicBool,
    /// What the connection holds for its peer.
    pub(crate) unread: Arc<ConnectionUnread>,
    /// What is known about its streams.
    pub(crate) streams: Arc<ConnectionStreams>,
}

/// A request under way, until it is dropped.
pub(crate) struct UnderWay<'a>(&'a Activity);

impl Activity {
    /// A request begins.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.begun.fetch_add(1, Relaxed);
        self.under_way.fetch_add(1, Relaxed);
        UnderWay(self)
    }

    /// Work is in flight that does not count as a request.
    pub(crate) fn hold(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Relaxed);
        UnderWay(self)
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
    fn end_turn(&self, place: &SilentPlace, waker: &Waker) -> TurnEnd {
        let progress = TurnProgress {
            requests: self.begun.load(Relaxed),
            sent: self.unread.progress(),
        };
        place.end_turn(progress, self.under_way.load(Relaxed) > 0, waker)
    }

    /// Whether the service is about to end, and would rather be left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
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
struct Silence {
    begun: u64,
    sent: usize,
    /// Quarters in which nothing began, nothing was in flight and nothing was sent.
    still: u32,
    /// Quarters in which nothing was sent of what there is to send.
    unread: u32,
}

impl Silence {
    /// Looks at what the last quarter has brought.
    fn next_quarter(&mut self, activity: &Activity) -> u32 {
        let begun = activity.begun.load(Relaxed);
        let sent = activity.unread.progress();
        let nothing_sent = sent == self.sent;
        let is_still = nothing_sent && begun == self.begun && activity.under_way.load(Relaxed) == 0;
        let is_unread = nothing_sent && activity.unread.bytes() > 0;
        let count = |quarters: u32, goes_on: bool| if goes_on { quarters + 1 } else { 0 };
        *self = Silence {
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
    silence: Silence,
    /// On the heap, so that a connection that is served has no room for it.
    tick: Pin<Box<Sleep>>,
}

impl ClosingWatch {
    fn begin(activity: &Activity) -> Self {
        let mut silence = Silence::default();
        silence.next_quarter(activity);
        silence.still = 0;
        ClosingWatch {
            silence,
            tick: Box::pin(sleep(LAST_MOMENT)),
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
            self.tick.as_mut().reset(Instant::now() + LAST_MOMENT);
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

/// Lets `conversation` go on to its end, and gives what it ends with unless it is cut off. `finish` asks
/// it to end once it has answered what it has read.
pub(crate) async fn over<C: Future>(
    mut conversation: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    peer: &Place,
    keeping: Keeping,
    mut guards: Guards,
) -> Option<C::Output> {
    let open = OpenConnection::count(&guards.metrics);
    // The change itself may have come before this connection.
    let phase = *guards.phase.borrow_and_update();
    activity.leaving.store(phase != Phase::Serving, Relaxed);
    let mut place = match guards.silent.take() {
        Some(place) => EvictionPlace::Small(place),
        None => EvictionPlace::Unplaced,
    };
    let quarter = keeping.idle / QUARTERS;
    let mut first_request = keeping.first_request.filter(|time| *time < keeping.idle);
    let mut tick = pin!(sleep(first_request.unwrap_or(quarter)));
    let mut aged = pin!(sleep(keeping.age.map_or(NEVER, Age::drawn)));
    let mut old = false;
    let mut silent = Silence::default();
    let mut closing = None;
    if phase == Phase::Closing {
        closing = Some(ClosingWatch::begin(activity));
        finish(conversation.as_mut());
    }
    let listener_unread = Arc::clone(&guards.unread);
    let mut unread_place = UnreadPlace::new(&listener_unread, &activity.unread);
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
            ended = conversation.as_mut() => break Some(ended),
            // Here the conversation has done all it can for now.
            eviction = poll_fn(|cx| {
                if unread_place.end_turn(cx.waker()) == TurnEnd::Evicted {
                    return Poll::Ready(Eviction::Unread);
                }
                if activity.streams.is_at_max() {
                    return Poll::Ready(Eviction::Streams);
                }
                place.grow(activity, &guards.large);
                let (place, eviction) = match &place {
                    EvictionPlace::Unplaced => return Poll::Pending,
                    EvictionPlace::Small(place) => (place, Eviction::Silent),
                    EvictionPlace::Large(_, place) => (place, Eviction::Large),
                    EvictionPlace::Leaving(place) => (place, Eviction::Leaving),
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
                    place = EvictionPlace::Leaving(guards.large.leave());
                    finish(conversation.as_mut());
                }
                Eviction::Leaving => break None,
            },
            () = tick.as_mut() => {
                if first_request.take().is_some() && activity.begun.load(Relaxed) == 0 {
                    open.0.connections_timed_out.inc();
                    break None;
                }
                let quarters = silent.next_quarter(activity);
                if quarters == QUARTERS {
                    open.0.connections_timed_out.inc();
                    finish(conversation.as_mut());
                } else if quarters > QUARTERS {
                    cut_off(UnreadCause::Idle);
                    break None;
                }
                tick.as_mut().reset(Instant::now() + quarter);
            }
            () = aged.as_mut() => {
                let Some(age) = keeping.age.filter(|_| !old) else { break None };
                old = true;
                finish(conversation.as_mut());
                aged.as_mut().reset(Instant::now() + age.grace);
            }
            () = idle_while_closing(closing.as_mut(), activity) => break None,
            changed = guards.phase.changed(), if !is_closing => {
                activity.leaving.store(true, Relaxed);
                if changed.is_err() || *guards.phase.borrow_and_update() == Phase::Closing {
                    closing = Some(ClosingWatch::begin(activity));
                    finish(conversation.as_mut());
                }
            }
        }
    }
}
