//! One node with a store that may fail: what it knows, and its way back after a failure.
//!
//! Background work, never on the path of a decision: a ping every so often, which is also this node's
//! sign of life; merging the mirror into a store that lost counts; charging to the store what was
//! admitted without it. All of it goes through the guard.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tidegate_core::algorithms::Division;
use tidegate_core::store::{ChargeSet, Life, NodeId, Outcome, Probe, Seed, Store};
use tidegate_core::units::Nanos;

use super::breaker::Change;
use super::event::{Event, Watcher};
use super::guard::Guard;
use super::local::Local;
use super::mirror::{Hearing, Mirror};
use super::owed::Due;
use super::settings::Settings;
use super::standing::{Next, Standing};
use super::store_clock::StoreClock;
use crate::runtime::Runtime;

/// Counters in one call to the store: enough to fill a packet, few enough to be quick.
const PER_CALL: usize = 32;

/// Everything a node keeps beside the store.
pub(super) struct Node<S, R> {
    pub(super) guard: Guard<S, R>,
    pub(super) runtime: R,
    pub(super) mirror: Mirror,
    pub(super) local: Local,
    pub(super) clock: StoreClock,
    standing: Mutex<Standing>,
    /// What `standing` says, for the path of a decision.
    exact: AtomicBool,
    settings: Settings,
    watcher: Watcher,
    /// When the store was last asked for its life and said the same.
    confirmed: AtomicU64,
    recovering: AtomicBool,
    pushing: AtomicBool,
    asking: AtomicBool,
}

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// A node that does not know its store yet. `wall` is the time of day.
    pub(super) fn start(
        store: S,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: Settings,
        watcher: Watcher,
    ) -> Arc<Self> {
        let node = Arc::new(Node {
            guard: Guard::new(store, runtime.clone(), &settings, Arc::clone(&watcher)),
            mirror: Mirror::new(settings.remembered),
            local: Local::new(wall, settings.remembered),
            clock: StoreClock::new(runtime.now(), wall),
            standing: Mutex::new(Standing::new(me, &settings)),
            exact: AtomicBool::new(false),
            runtime: runtime.clone(),
            settings,
            watcher,
            recovering: AtomicBool::new(false),
            pushing: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            confirmed: AtomicU64::new(0),
        });
        runtime.spawn(pings(Arc::downgrade(&node), runtime.clone()));
        node
    }

    /// The store's time, as far as this node can tell.
    pub(super) fn store_time(&self) -> Nanos {
        self.clock.at(self.runtime.now())
    }

    /// This node's part of a counter's limits.
    pub(super) fn division(&self, counter: u128) -> Division {
        self.standing.lock().division(counter)
    }

    /// Whether a set must be decided without asking the store.
    pub(super) fn decides(&self, set: &ChargeSet<'_>) -> bool {
        let owes = || {
            set.charges
                .iter()
                .any(|c| self.local.owed.keeps(c.counter()))
        };
        !self.exact.load(Ordering::Acquire) || owes()
    }

    /// Whether an answer is that of a store which has lost nothing. Takes note of it if so.
    pub(super) fn believes(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        sent: Nanos,
    ) -> bool {
        if self.guard.life().is_some_and(|life| self.is_news(life)) {
            self.lost();
            return false;
        }
        let now = self.runtime.now();
        let mut seen = set.charges.iter().zip(&outcome.seen);
        let gone = seen.any(|(charge, seen)| {
            !seen.was_there && self.mirror.holds_live(charge, outcome.at, now)
        });
        if gone {
            self.lost();
            return false;
        }
        self.note(set, outcome, sent);
        true
    }

    fn is_news(&self, life: Life) -> bool {
        self.standing
            .lock()
            .life()
            .is_some_and(|known| known != life)
    }

    fn note(self: &Arc<Self>, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let now = self.runtime.now();
        self.clock.note(sent, now, outcome.at);
        let by = Hearing {
            now,
            confirmed: Nanos::new(self.confirmed.load(Ordering::Acquire)),
        };
        for (charge, seen) in set.charges.iter().zip(&outcome.seen) {
            if self.mirror.note(charge, seen, outcome.at, by) {
                self.ask_soon();
            }
        }
    }

    /// A doubt: asks the store whether it is still the same, without waiting for the next ping.
    fn ask_soon(self: &Arc<Self>) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.ping().await;
            node.runtime.sleep(node.settings.ping_in_recovery).await;
            node.asking.store(false, Ordering::Release);
        });
    }

    /// The store has lost counts: decide locally, and put back what is remembered.
    fn lost(self: &Arc<Self>) {
        let news = {
            let mut standing = self.standing.lock();
            let news = standing.lost(self.runtime.now());
            self.exact.store(false, Ordering::Release);
            news
        };
        if news {
            (self.watcher)(Event::Lost);
            self.recover_soon();
        }
    }

    /// What was admitted locally is charged soon, if there is any and the store can be asked.
    pub(super) fn owes(self: &Arc<Self>) {
        if self.exact.load(Ordering::Acquire) && !self.guard.is_open() {
            self.push_soon(self.settings.push_soon);
        }
    }

    /// One ping, and what follows from it.
    async fn ping(self: &Arc<Self>) {
        let beat = self.standing.lock().beat();
        let sent = self.runtime.now();
        let (vitals, change) = self.guard.ping(beat).await;
        let now = self.runtime.now();
        if change == Some(Change::Closed) {
            self.standing.lock().reachable(now);
        }
        let Some(vitals) = vitals else {
            self.standing.lock().unheard();
            return;
        };
        self.clock.note(sent, now, vitals.at);
        let (was_exact, next) = {
            let mut standing = self.standing.lock();
            let was_exact = standing.is_exact();
            let next = standing.heard(&vitals, now);
            if !standing.is_exact() {
                self.exact.store(false, Ordering::Release);
            }
            (was_exact, next)
        };
        match next {
            Next::Nothing => {
                self.confirmed.store(sent.get(), Ordering::Release);
                match change {
                    Some(Change::Closed) => self.push_spread(),
                    _ => self.owes(), // nothing is left lying
                }
            }
            Next::Believe => self.settle_soon(),
            Next::Seed | Next::Wait => {
                if was_exact {
                    (self.watcher)(Event::Lost);
                }
                self.recover_soon();
            }
        }
    }

    /// Charges the bulk of what is owed, and believes the store then: the first exact decision is to
    /// know of it. Not for long, because decisions are local meanwhile.
    fn settle_soon(self: &Arc<Self>) {
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            if !node.pushing.swap(true, Ordering::AcqRel) {
                let until = node.runtime.now().plus(node.settings.push_spread);
                node.push_due(until).await;
                node.pushing.store(false, Ordering::Release);
            }
            let exact = {
                let standing = node.standing.lock();
                node.exact.store(standing.is_exact(), Ordering::Release);
                standing.is_exact()
            };
            if exact {
                (node.watcher)(Event::Exact);
                node.push_soon(Nanos::ZERO);
            }
        });
    }

    /// The nodes as last listed.
    pub(super) fn roster(&self) -> Vec<NodeId> {
        self.standing.lock().roster()
    }

    fn recover_soon(self: &Arc<Self>) {
        if self.guard.is_open() || self.recovering.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.recover().await;
            node.recovering.store(false, Ordering::Release);
        });
    }

    /// Puts back what is remembered and waits for the others to have done so.
    async fn recover(self: &Arc<Self>) {
        while self.standing.lock().is_recovering() && !self.guard.is_open() {
            self.ping().await;
            let unseeded = {
                let standing = self.standing.lock();
                let life = standing.life();
                life.filter(|_| standing.is_recovering() && standing.beat().seeded != life)
            };
            if let Some(life) = unseeded
                && let Some(counters) = self.seed().await
                && self.guard.life().is_none_or(|now| now == life)
            {
                self.standing.lock().seeded(life);
                (self.watcher)(Event::Seeded { life, counters });
                continue; // so that the others hear of it
            }
            if self.standing.lock().is_recovering() {
                self.runtime.sleep(self.settings.ping_in_recovery).await;
            }
        }
    }

    /// Merges the mirror into the store; how many counters, or nothing if the store failed.
    async fn seed(&self) -> Option<usize> {
        let all = self.mirror.all(self.store_time(), self.runtime.now());
        for some in all.chunks(PER_CALL) {
            let seeds: Vec<Seed<'_>> = some
                .iter()
                .map(|(charge, state)| Seed {
                    charge: charge.charge(),
                    state: state.clone(),
                })
                .collect();
            self.guard.seed(&seeds).await.ok()?;
        }
        Some(all.len())
    }

    /// After a recovery many nodes have much to say: not all at once.
    fn push_spread(self: &Arc<Self>) {
        self.push_soon(self.runtime.jitter(self.settings.push_spread));
    }

    fn push_soon(self: &Arc<Self>, wait: Nanos) {
        if self.local.owed.is_empty() || self.pushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.runtime.sleep(wait).await;
            node.push_all().await;
            node.pushing.store(false, Ordering::Release);
        });
    }

    /// Charges to the store what was admitted without it, until nothing is owed.
    async fn push_all(self: &Arc<Self>) {
        while self.may_push() && self.push_due(Nanos::MAX).await {
            self.runtime.sleep(self.settings.push_pause).await;
        }
    }

    fn may_push(&self) -> bool {
        self.standing.lock().is_exact() && !self.guard.is_open()
    }

    /// Charges what is owed now, the largest debts first, but begins nothing after `until`. Whether
    /// there was anything.
    async fn push_due(self: &Arc<Self>, until: Nanos) -> bool {
        let due = self.local.owed.due(self.store_time());
        for (i, batch) in due.chunks(self.settings.push_batch).enumerate() {
            if i > 0 {
                self.runtime.sleep(self.settings.push_pause).await;
            }
            if !self.may_push() || self.runtime.now() >= until {
                break;
            }
            for some in batch.chunks(PER_CALL) {
                if !self.push(some).await {
                    break;
                }
            }
        }
        !due.is_empty()
    }

    async fn push(self: &Arc<Self>, counters: &[u128]) -> bool {
        let now = self.store_time();
        let begin = |counter: &u128| self.local.owed.begin(*counter, now);
        let due: Vec<Due> = counters.iter().filter_map(begin).collect();
        let set = ChargeSet {
            charges: due.iter().map(|due| due.charge.owing(due.cost)).collect(),
        };
        let sent = self.runtime.now();
        let answer = self.guard.force(&set).await;
        let charged = answer.is_ok_and(|outcome| self.believes(&set, &outcome, sent));
        let now = self.store_time();
        for due in &due {
            match charged {
                true => self.local.owed.done(due.counter, now),
                false => self.local.owed.failed(due.counter, now),
            }
        }
        if charged {
            (self.watcher)(Event::Pushed {
                counters: due.len(),
                units: due.iter().map(|due| due.cost.get()).sum(),
            });
        }
        charged
    }
}

/// Pings for as long as the node lives.
async fn pings<S: Store + Probe + 'static, R: Runtime>(node: Weak<Node<S, R>>, runtime: R) {
    while let Some(node) = node.upgrade() {
        if !node.recovering.load(Ordering::Acquire) {
            node.ping().await;
        }
        let every = node.settings.ping_every;
        let tenth = Nanos::new(every.get() / 10);
        drop(node);
        let wait = every
            .since(tenth)
            .plus(runtime.jitter(tenth).plus(runtime.jitter(tenth)));
        runtime.sleep(wait).await;
    }
}
