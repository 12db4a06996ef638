//! One node with a store that may fail: what it knows, and whether it believes the store.
//!
//! `recovery` and `push` are its background work, never on the path of a decision: a ping every so
//! often, which is also this node's sign of life; merging the mirror into a store that lost counts;
//! charging to the store what was admitted without it, and telling it of `slots`. All of it goes through
//! the guard.

mod clock;
mod late;
mod push;
mod recovery;
mod slots;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::algorithms::Division;
use tidegate_core::store::{Charge, ChargeSet, Life, NodeId, Outcome, Probe, Seen, Slot, Store};
use tidegate_core::units::Nanos;

pub(super) use self::late::Outstanding;
use super::clock_watch::ClockWatch;
use super::event::{Event, Watcher};
use super::guard::Guard;
use super::membership::Membership;
use super::memory::Memory;
use super::mirror::Hearing;
use super::settings::Settings;
use super::standing::Standing;
use super::store_clock::StoreClock;
use crate::runtime::Runtime;

/// Counters in one call to the store: enough to fill a packet, few enough to be quick.
const PER_CALL: usize = 32;
/// Slots that are spoken of at once: a call each, and together still quick.
const SLOTS_AT_ONCE: usize = 32;

/// A node as one store sees it: everything it keeps beside that store. What it remembers of counters
/// is shared with its other stores, if it has several; of these it touches those that its store holds.
pub(super) struct Node<S, R> {
    pub(super) guard: Guard<S, R>,
    pub(super) runtime: R,
    pub(super) memory: Arc<Memory>,
    pub(super) clock: StoreClock,
    /// Whether it and this node's wall clock agree.
    watch: Mutex<ClockWatch>,
    /// Changed through `update_standing` only, which publishes what follows.
    standing: Mutex<Standing>,
    /// What `standing` says of the nodes and the epoch, for the path of a decision.
    membership: ArcSwap<Membership>,
    /// What `standing` says, for the path of a decision.
    exact: AtomicBool,
    settings: Settings,
    watcher: Watcher,
    /// When the store was last asked for its life and said the same.
    confirmed: AtomicU64,
    recovering: AtomicBool,
    pushing: AtomicBool,
    asking: AtomicBool,
    telling: AtomicBool,
    /// When the newest ping was sent that was answered.
    heard_ping: AtomicU64,
    /// When the breaker last closed, as far as a ping has noticed.
    noticed_closing: AtomicU64,
}

/// When a request was sent, by the local clock, and the epoch of the store then.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentIn {
    pub(super) at: Nanos,
    pub(super) epoch: Option<Life>,
}

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// A node that does not know its store yet, or has none. `wall` is the time of day.
    pub(super) fn new(
        store: Option<S>,
        memory: Arc<Memory>,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: Settings,
        watcher: Watcher,
    ) -> Arc<Self> {
        let standing = Standing::new(me, &settings);
        Arc::new(Node {
            membership: ArcSwap::from_pointee(standing.membership()),
            standing: Mutex::new(standing),
            guard: Guard::new(store, runtime.clone(), &settings, Arc::clone(&watcher)),
            memory,
            clock: StoreClock::new(runtime.now(), wall),
            watch: Mutex::new(ClockWatch::new(settings.clock)),
            exact: AtomicBool::new(false),
            runtime,
            settings,
            watcher,
            recovering: AtomicBool::new(false),
            pushing: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            telling: AtomicBool::new(false),
            heard_ping: AtomicU64::new(0),
            noticed_closing: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
        })
    }

    /// Begins to ask the store how it is.
    pub(super) fn begin(self: &Arc<Self>) {
        let pings = recovery::pings(Arc::downgrade(self), self.runtime.clone());
        self.runtime.spawn(pings);
    }

    /// The store's time, as far as this node can tell.
    pub(super) fn store_time(&self) -> Nanos {
        self.clock.at(self.runtime.now())
    }

    /// This node's part of a counter's limits.
    pub(super) fn division(&self, counter: u128) -> Division {
        self.membership.load().division(counter)
    }

    /// Whether a set must be decided without asking the store.
    pub(super) fn decides(&self, set: &ChargeSet<'_>) -> bool {
        let owes = || {
            set.charges
                .iter()
                .any(|c| self.memory.local.owed.keeps(c.counter()))
        };
        !self.exact.load(Ordering::Acquire) || owes()
    }

    /// The same of a decision that was asked for while the store was believed. Another answer may have shown
    /// a loss meanwhile: what is not put back yet would swallow this one.
    pub(super) fn believes_still(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        sent: SentIn,
    ) -> bool {
        self.exact.load(Ordering::Acquire) && self.believes(set, outcome, sent)
    }

    /// A request that is sent now.
    pub(super) fn sent_now(&self) -> SentIn {
        SentIn {
            at: self.runtime.now(),
            epoch: self.guard.life(),
        }
    }

    /// Whether the store has begun another epoch since a request was sent, whose charge went with the
    /// old one. The node may believe the new epoch by now.
    fn has_turned(self: &Arc<Self>, sent: SentIn) -> bool {
        if self.sees_loss() {
            return true;
        }
        let life = self.guard.life();
        life.is_some_and(|life| sent.epoch.is_some_and(|epoch| epoch != life))
    }

    /// Whether the store shows that it may have lost something: another life, or counters that have come from elsewhere
    /// and may be incomplete.
    pub(super) fn sees_loss(self: &Arc<Self>) -> bool {
        if self.note_lacking() {
            return true;
        }
        let is_news = self.guard.life().is_some_and(|life| self.is_news(life));
        if is_news {
            self.lost();
        }
        is_news
    }

    /// Reports a charge that was sent and not confirmed: the store may count it beside what is charged later.
    pub(super) fn unconfirmed(&self, set: &ChargeSet<'_>) {
        let units = set.charges.iter().map(|charge| charge.cost.get()).sum();
        (self.watcher)(Event::Unconfirmed { units });
    }

    /// Whether an answer is that of a store which has lost nothing. Takes note of it if so.
    pub(super) fn believes(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        sent: SentIn,
    ) -> bool {
        if self.has_turned(sent) {
            return false;
        }
        let mut seen = set.charges.iter().zip(&outcome.seen);
        if seen.any(|(charge, seen)| self.is_gone(charge, seen, outcome.at)) {
            self.lost();
            return false;
        }
        self.note(set, outcome, sent.at);
        true
    }

    /// Whether the store has lost the record of a counter that this node remembers.
    fn is_gone(&self, charge: &Charge<'_>, seen: &Seen, at: Nanos) -> bool {
        let now = self.runtime.now();
        !seen.was_there && self.memory.mirror.holds_live(charge, at, now)
    }

    /// The store has charged pending units. Of each charge, the units that it will not count all the same:
    /// its record was lost, and restoring the record swallows some. None if the store has begun another
    /// epoch, in which all of them may be missing.
    pub(super) fn swallowed(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        sent: SentIn,
    ) -> Option<Vec<u64>> {
        if self.has_turned(sent) {
            return None;
        }
        let mut swallowed = vec![0; set.charges.len()];
        let mut any_gone = false;
        for (i, charge) in set.charges.iter().enumerate() {
            let Some(seen) = outcome.seen.get(i) else {
                continue;
            };
            if self.is_gone(charge, seen, outcome.at) {
                any_gone = true;
                swallowed[i] = self.memory.mirror.swallows(charge, seen, outcome.at);
            } else {
                self.note_one(charge, i, outcome, sent.at);
            }
        }
        if any_gone {
            self.lost();
        }
        Some(swallowed)
    }

    fn is_news(&self, life: Life) -> bool {
        let known = self.membership.load().epoch;
        known.is_some_and(|known| known != life)
    }

    fn note(self: &Arc<Self>, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        for (i, charge) in set.charges.iter().enumerate() {
            self.note_one(charge, i, outcome, sent);
        }
    }

    /// Takes note of the counter of one charge, the `i`th of those that were decided.
    fn note_one(self: &Arc<Self>, charge: &Charge<'_>, i: usize, outcome: &Outcome, sent: Nanos) {
        let (Some(reading), Some(seen)) = (outcome.readings.get(i), outcome.seen.get(i)) else {
            return;
        };
        let now = self.runtime.now();
        self.clock.note(sent, now, outcome.at);
        let by = Hearing {
            now,
            confirmed: Nanos::new(self.confirmed.load(Ordering::Acquire)),
            sent,
        };
        let spent = if outcome.admitted && reading.verdict.allows() {
            charge.cost.get()
        } else {
            0
        };
        let mirror = &self.memory.mirror;
        if mirror.note(charge, spent, seen, outcome.at, by) {
            self.ask_soon();
        }
    }

    /// The store has lost counts: decide locally, and put back what is remembered.
    pub(super) fn lost(self: &Arc<Self>) {
        self.note_loss(Standing::lost);
    }

    /// The store may lack counts that it should have, whatever was restored so far.
    pub(super) fn may_lack_counts(self: &Arc<Self>) {
        self.note_loss(Standing::may_lack_counts);
    }

    /// Whether slots have come to the store that may be incomplete. Takes note of them.
    pub(super) fn note_lacking(self: &Arc<Self>) -> bool {
        let slots = self.guard.take_lacking();
        let is_lacking = !slots.is_empty();
        if is_lacking {
            self.note_loss(|standing, now| standing.may_lack_slots(slots, now));
        }
        is_lacking
    }

    fn note_loss(self: &Arc<Self>, note: impl FnOnce(&mut Standing, Nanos) -> bool) {
        let now = self.runtime.now();
        let is_news = self.update_standing(|standing| {
            let is_news = note(standing, now);
            self.exact.store(false, Ordering::Release);
            is_news
        });
        if is_news {
            self.tell_loss();
            self.recover_soon();
        }
    }

    /// The store has turned out to have lost counts. What it admitted before that was known is owed:
    /// no memory of any node includes it.
    fn tell_loss(&self) {
        let (mirror, owed) = (&self.memory.mirror, &self.memory.local.owed);
        let confirmed = Nanos::new(self.confirmed.load(Ordering::Acquire));
        let holds = |subject| self.guard.slot(subject).is_some();
        let late = &self.memory.late;
        late.update_active(|ledger| ledger.void_credits(|charge| holds(charge.subject)));
        for (charge, admitted) in mirror.take_doubtful(holds, confirmed) {
            let (charge, now) = (charge.owing(admitted), self.store_time());
            let empty_at = mirror.empties_at(&charge).unwrap_or(now);
            owed.spend(&charge, &charge.limit, now, empty_at);
        }
        (self.watcher)(Event::Lost);
    }

    /// Changes what is known of the store, and publishes what decisions need of it.
    fn update_standing<T>(&self, change: impl FnOnce(&mut Standing) -> T) -> T {
        let mut standing = self.standing.lock();
        let result = change(&mut standing);
        let membership = standing.membership();
        // Published under the lock, so that changes are published in their order.
        if **self.membership.load() != membership {
            self.membership.store(Arc::new(membership));
        }
        result
    }

    /// The nodes as last listed, once that list is complete.
    pub(super) fn roster(&self) -> Vec<NodeId> {
        self.standing.lock().roster()
    }
}

/// What belongs into each slot, in the order in which slots first come up: a call speaks of one.
fn by_slot<T: Clone>(all: &[(Slot, T)]) -> Vec<Vec<T>> {
    let mut places: BTreeMap<Slot, usize> = BTreeMap::new();
    let mut slots: Vec<Vec<T>> = Vec::new();
    for (slot, one) in all {
        let place = *places.entry(*slot).or_insert(slots.len());
        if place == slots.len() {
            slots.push(Vec::new());
        }
        slots[place].push(one.clone());
    }
    slots
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use tidegate_core::store::Vitals;

    use super::*;
    use crate::runtime::TokioRuntime;
    use crate::stores::redis::RedisStore;

    fn node() -> Arc<Node<RedisStore, TokioRuntime>> {
        let settings = Settings::default();
        let memory = Arc::new(Memory::new(Nanos::ZERO, &settings));
        let runtime = TokioRuntime::new().expect("randomness");
        let watcher: Watcher = Arc::new(|_| {});
        let me = NodeId(1);
        Node::new(None, memory, runtime, me, Nanos::ZERO, settings, watcher)
    }

    /// In an outage every decision of every core once waited for this lock, and hashed all nodes inside it.
    /// With the lock in the path of a decision, this test never ends.
    #[test]
    fn a_decision_does_not_wait_for_the_lock_of_the_standing() {
        let node = node();
        let _held = node.standing.lock();
        assert_eq!(node.division(7).nodes, 8, "nobody said how many");
        assert!(!node.is_news(Life(7)));
    }

    #[test]
    fn what_changes_is_published() {
        let node = node();
        let status = Vitals {
            life: Life(7),
            at: Nanos::ZERO,
            whole_until: Nanos::ZERO,
            beats: Vec::new(),
        };
        for second in [1, 2] {
            let now = Nanos::from_secs(second);
            node.update_standing(|standing| standing.heard(&status, now, || false));
        }
        assert!(node.is_news(Life(8)) && !node.is_news(Life(7)));
        let division = node.division(7);
        assert_eq!((division.nodes, division.place), (1, Some(0)));
    }
}
