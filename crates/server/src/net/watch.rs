//! The watch over one connection, whatever is spoken on it: its silence, its end, its place in the
//! numbers.
//!
//! Kept true: a connection on which nothing begins and nothing is under way for the idle time is asked
//! to finish and cut off soon after, whatever it is doing meanwhile (sending nothing, trickling,
//! not reading its answers). It is one timer per connection, not one per request. One that has reached
//! its age is asked to finish too, and cut off when its grace has passed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate::observe::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::drain::Phase;
use crate::net::peers::Seat;
use crate::net::waiting_streams::WaitingStreams;

/// The idle time is counted in so many parts: a connection is asked to close when that many have
/// passed since its last request, and cut off one part later. A request itself reads no clock.
const QUARTERS: u32 = 4;

/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How connections are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// How long one may send nothing.
    pub(crate) idle: Duration,
    /// How old one gets, if there is an end to it.
    pub(crate) age: Option<Age>,
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

/// Lets `conversation` go on to its end, and gives what it ends with unless it is cut off. `finish` asks
/// it to end once it has answered what it has read.
pub(crate) async fn over<C: Future>(
    mut conversation: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    keeping: Keeping,
    mut guards: Guards,
) -> Option<C::Output> {
    let open = OpenConnection::count(&guards.metrics);
    // The change itself may have come before this connection.
    let leaving = *guards.phase.borrow_and_update() != Phase::Serving;
    activity.leaving.store(leaving, Relaxed);
    let quarter = keeping.idle / QUARTERS;
    let mut tick = pin!(sleep(quarter));
    let mut aged = pin!(sleep(keeping.age.map_or(NEVER, Age::drawn)));
    let mut old = false;
    let (mut begun_before, mut silent, mut closing) = (0, 0, false);
    loop {
        tokio::select! {
            biased;
            ended = conversation.as_mut() => break Some(ended),
            () = tick.as_mut() => {
                let begun = activity.begun.load(Relaxed);
                let still = begun == begun_before && activity.under_way.load(Relaxed) == 0;
                silent = if still { silent + 1 } else { 0 };
                if silent == QUARTERS {
                    open.0.connections_timed_out.inc();
                    finish(conversation.as_mut());
                } else if silent > QUARTERS {
                    break None;
                }
                begun_before = begun;
                tick.as_mut().reset(Instant::now() + quarter);
            }
            () = aged.as_mut() => {
                let Some(age) = keeping.age.filter(|_| !old) else { break None };
                old = true;
                finish(conversation.as_mut());
                aged.as_mut().reset(Instant::now() + age.grace);
            }
            changed = guards.phase.changed(), if !closing => {
                activity.leaving.store(true, Relaxed);
                closing = changed.is_err() || *guards.phase.borrow_and_update() == Phase::Closing;
                if closing {
                    finish(conversation.as_mut());
                }
            }
        }
    }
}
