//! A store that always decides: exactly while the store behind it can be believed, by this node's
//! share of each limit while it cannot.
//!
//! Bounds: without the store all nodes together admit at most the share of each limit. Where an
//! outage begins or ends, a window may hold what was admitted exactly beside that. A counter that owes
//! the store something is decided locally until the store has charged it.

use std::sync::Arc;

use smallvec::smallvec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Kept, Life, NodeId, Outcome, Probe,
    Reading, Refund, Refunded, Reserve, Role, Seed, Settle, Settled, Slot, Source, Store,
    StoreError,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::clock_watch::ClockReading;
use super::event::Watcher;
use super::guard::{Away, ChargeReply, LATE, LateReply, doubtful};
use super::late::{LateId, Payment, Payments};
use super::local::slots_of;
use super::memory::Memory;
use super::node::{Node, Outstanding, SentIn};
use super::owned::{OwnedCharge, OwnedSet};
use super::settings::Settings;
use super::undo::{Manner, Readings, before, refund_of, unused};
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// A decision, and what is outstanding of it.
pub(super) struct Decided {
    pub(super) outcome: Outcome,
    late: LateTicket,
}

enum LateTicket {
    None,
    /// The reply is outstanding.
    Outstanding(LateId),
    /// The request was not sent. What paid for it.
    Unsent(Payments),
}

impl From<Outcome> for Decided {
    fn from(outcome: Outcome) -> Self {
        Decided {
            outcome,
            late: LateTicket::None,
        }
    }
}

/// A store and what stands in for it. Clones are the same.
pub struct Fallback<S, R> {
    node: Arc<Node<S, R>>,
}

impl<S, R> Clone for Fallback<S, R> {
    fn clone(&self) -> Self {
        Fallback {
            node: Arc::clone(&self.node),
        }
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Fallback<S, R> {
    /// Stands in for `store`, as the node `me`. Starts without the store.
    pub fn new(store: S, runtime: R, me: NodeId, settings: Settings, watcher: Watcher) -> Self {
        // The time of day has to do until the store tells its own.
        let wall = runtime.wall();
        let memory = Arc::new(Memory::new(wall, &settings));
        Fallback::beside(store, memory, runtime, me, wall, settings, watcher)
    }

    /// The same for one store of several, with a memory that they share.
    pub(super) fn beside(
        store: S,
        memory: Arc<Memory>,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: Settings,
        watcher: Watcher,
    ) -> Self {
        let node = Node::new(Some(store), memory, runtime, me, wall, settings, watcher);
        node.begin();
        Fallback { node }
    }

    /// Stands in for no store at all.
    pub(super) fn of_nothing(
        memory: Arc<Memory>,
        runtime: R,
        me: NodeId,
        wall: Nanos,
        settings: Settings,
    ) -> Self {
        let nobody = Arc::new(|_| {});
        Fallback {
            node: Node::new(None, memory, runtime, me, wall, settings, nobody),
        }
    }

    /// The slot that a subject is in, if it is in this store.
    pub(super) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        self.node.guard.slot(subject)
    }

    /// The store's present life.
    pub(super) fn life(&self) -> Option<Life> {
        self.node.guard.life()
    }

    /// The same while the store is believed about the counter of `charge`. One that does not tell has one
    /// life, whichever.
    pub(super) fn life_of(&self, charge: &Charge<'_>) -> Option<Life> {
        let believed = !self.node.decides(&ChargeSet::of_one(charge.clone()));
        believed.then(|| self.life().unwrap_or(Life(0)))
    }

    /// Whether the store answers and is believed to hold every count.
    pub(super) fn is_exact(&self) -> bool {
        self.node.is_exact() && !self.node.guard.is_open()
    }

    /// Counters have come to this store that it may never have held.
    pub(super) fn may_lack_counts(&self) {
        self.node.may_lack_counts();
    }

    /// The store's time, as far as this node can tell.
    pub(super) fn time(&self) -> Nanos {
        self.node.store_time()
    }

    /// The nodes as last listed, to be kept for the next start; none until the list is complete.
    pub fn roster(&self) -> Vec<NodeId> {
        self.node.roster()
    }

    /// How far the store's clock is from this node's, once it has answered.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.node.clock_reading()
    }

    /// Charges a set, without the store if it is later than `until` or would be.
    pub(super) async fn charge_by(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
        manner: Manner,
    ) -> Decided {
        if self.node.decides(set) {
            return self.decide_locally(set, manner).into();
        }
        let decided = self.charge_all(until, &[set], manner).await.pop();
        decided.unwrap_or_else(|| self.decide_locally(set, manner).into())
    }

    /// Charges sets that the store decides, each on its own.
    async fn charge_all(
        &self,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        manner: Manner,
    ) -> Vec<Decided> {
        let node = &self.node;
        let sent = node.sent_now();
        match node.guard.charge_all(until, sets, manner).await {
            Ok(ChargeReply::InTime(answers)) => {
                let mut answers = answers.into_iter();
                let decided = sets
                    .iter()
                    .map(|set| self.decide_in_time(set, answers.next(), sent, manner));
                decided.collect()
            }
            Ok(ChargeReply::Late(late)) => self.decide_late(sets, late, manner),
            Err(Away::Full | Away::NoTime) if node.is_exact() => {
                let decided = sets.iter().map(|set| self.decide_unsent(set, manner));
                decided.collect()
            }
            Err(_) => {
                let decided = sets.iter().map(|set| self.decide_locally(set, manner));
                decided.map(Decided::from).collect()
            }
        }
    }

    /// The reply came in time: it decides, and if it denies, credits may pay.
    fn decide_in_time(
        &self,
        set: &ChargeSet<'_>,
        answer: Option<Answer<Outcome>>,
        sent: SentIn,
        manner: Manner,
    ) -> Decided {
        let node = &self.node;
        let was_sent = answer.as_ref().is_some_and(was_sent);
        let outcome = answer.and_then(Result::ok);
        let outcome = outcome.filter(|outcome| node.believes_still(set, outcome, sent));
        let Some(mut outcome) = outcome else {
            if was_sent {
                node.unconfirmed(set);
            }
            return self.decide_locally(set, manner).into();
        };
        if !outcome.admitted && manner == Manner::Charge && node.pays_by_credits(set) {
            outcome.admitted = true;
            outcome.source = Source::Late;
            for (charge, reading) in set.charges.iter().zip(&mut outcome.readings) {
                if charge.role != Role::Shadow && !reading.verdict.allows() {
                    reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                }
            }
        }
        outcome.into()
    }

    /// The replies are late: the newest states decide, and somebody waits for the replies.
    fn decide_late(
        &self,
        sets: &[&ChargeSet<'_>],
        late: LateReply,
        manner: Manner,
    ) -> Vec<Decided> {
        let node = &self.node;
        let trusted = node.is_exact() && !node.guard.is_open();
        let mut requests = Vec::with_capacity(sets.len());
        let decided = sets.iter().map(|set| {
            let unpaid = || set.charges.iter().map(|_| Payment::None).collect();
            let (mut decided, payments) = match manner {
                _ if !trusted => (self.decide_locally(set, manner).into(), unpaid()),
                Manner::Charge => {
                    let (outcome, payments) = node.decide_late(set);
                    (Decided::from(outcome), payments)
                }
                // It may be settled before the reply arrives: this node keeps it, and what the store reserves
                // is settled with nothing.
                Manner::Reserve { .. } => (self.decide_unsent(set, manner), unpaid()),
            };
            let charges = set.charges.iter().map(OwnedCharge::of);
            let (late, at) = (&node.memory.late, decided.outcome.at);
            let id = late.update(|ledger| ledger.open(charges, payments, at));
            node.unconfirmed(set);
            let set = OwnedSet::of(set);
            requests.push(Outstanding { id, set });
            if trusted && manner == Manner::Charge {
                decided.late = LateTicket::Outstanding(id);
            }
            decided
        });
        let decided = decided.collect();
        node.await_late(late, requests, manner);
        decided
    }

    /// There is no time or no room for a call: decided as if the reply were late, and owed at once.
    fn decide_unsent(&self, set: &ChargeSet<'_>, manner: Manner) -> Decided {
        let node = &self.node;
        let (outcome, payments) = node.decide_late(set);
        if outcome.admitted {
            node.owe_late(set, &payments);
            node.reserve_here(set, &outcome, manner);
        }
        Decided {
            outcome,
            late: LateTicket::Unsent(payments),
        }
    }

    /// What `charge_by` would answer.
    pub(super) async fn peek_by(&self, until: Nanos, set: &ChargeSet<'_>) -> Outcome {
        let node = &self.node;
        if !node.decides(set) {
            if let Ok(outcome) = node.guard.peek_by(until, set).await {
                return outcome;
            }
            if node.is_exact() && !node.guard.is_open() {
                return node.peek_late(set);
            }
        }
        let (memory, division) = (&node.memory, |counter| node.division(counter));
        let now = node.store_time();
        memory.local.peek(set, division, &memory.mirror, now)
    }

    /// Takes back a charge of a moment ago, wherever it was made, because the request that it was for
    /// was refused elsewhere. The readings as they were before it.
    pub(super) fn take_back(
        &self,
        set: &ChargeSet<'_>,
        decided: Decided,
        life: Option<Life>,
        manner: Manner,
    ) -> Readings {
        let Decided { outcome, late } = decided;
        match (outcome.source, late) {
            (Source::Late, LateTicket::Outstanding(id)) => {
                self.take_back_late(set, id, outcome, life, manner)
            }
            (Source::Late, LateTicket::Unsent(payments)) => {
                let (owed, now) = (&self.node.memory.local.owed, self.node.store_time());
                if let Manner::Reserve { id, lasts } = manner {
                    let settle = unused(id, lasts, set.clone(), &outcome);
                    self.node.memory.reserved.close(&settle);
                }
                for (charge, payment) in set.charges.iter().zip(payments) {
                    if payment == Payment::Part {
                        owed.cancel(&OwnedCharge::of(charge), now);
                    }
                }
                self.node.peek_late(set).readings
            }
            (Source::Fallback, _) => self.take_back_locally(set, &outcome, manner),
            _ => {
                let readings = before(set, &outcome);
                self.node.guard.give_back(set, outcome, life, manner);
                readings
            }
        }
    }

    fn take_back_late(
        &self,
        set: &ChargeSet<'_>,
        id: LateId,
        outcome: Outcome,
        life: Option<Life>,
        manner: Manner,
    ) -> Readings {
        let node = &self.node;
        let now = (node.runtime.now(), node.store_time());
        let outstanding = node.memory.late.update(|ledger| ledger.withdraw(id, now));
        if !outstanding {
            node.guard.give_back(set, outcome, life, manner);
        }
        node.peek_late(set).readings
    }

    fn take_back_locally(
        &self,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        manner: Manner,
    ) -> Readings {
        let (node, memory) = (&self.node, &self.node.memory);
        if let Manner::Reserve { id, lasts } = manner {
            memory
                .reserved
                .close(&unused(id, lasts, set.clone(), outcome));
        }
        let division = |counter| node.division(counter);
        let now = node.store_time();
        let refund = refund_of(&node.runtime, set.clone(), outcome);
        memory.local.refund(&refund, division, now);
        let peeked = memory.local.peek(set, division, &memory.mirror, now);
        peeked.readings
    }

    /// Decides by this node's shares, which count what is unconfirmed.
    pub(super) fn decide_locally(&self, set: &ChargeSet<'_>, manner: Manner) -> Outcome {
        let (node, memory) = (&self.node, &self.node.memory);
        node.share_unconfirmed(set);
        let division = |counter| node.division(counter);
        let (mirror, now) = (&memory.mirror, node.store_time());
        let outcome = memory.local.charge(set, division, mirror, now);
        if outcome.admitted {
            node.owes();
            node.reserve_here(set, &outcome, manner);
        }
        outcome
    }

    /// Corrects an estimate that was admitted here without the store: here as long as the store does not
    /// know of it, and there once it was told. What is lost on the way stays charged.
    async fn correct(&self, settle: &Settle<'_>, found: &[Kept]) -> Answer<()> {
        let more = settle.charged_on_top(found);
        if !more.charges.is_empty() {
            self.force(&more).await?;
        }
        let back = settle.given_back(found);
        if !back.charges.is_empty() {
            let refund = Refund {
                id: settle.id,
                charged: settle.given_back_of(found),
                until: self.time().plus(LATE),
                set: back,
            };
            let _lost_or_done = self.refund_estimate(&refund).await;
        }
        Ok(())
    }

    /// Refunds what was not used of an estimate that only this node knows.
    async fn refund_estimate(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let node = &self.node;
        if !node.decides(&refund.set) {
            return node.guard.refund(refund).await;
        }
        let division = |counter| node.division(counter);
        let local = &node.memory.local;
        Ok(local.refund(refund, division, node.store_time()))
    }
}

/// A grant as the charge that it is.
fn as_charge<'a>(charge: &Charge<'a>, granted: &Granted) -> (ChargeSet<'a>, Outcome) {
    let units = Cost::new(granted.units);
    let set = ChargeSet::of_one(Charge {
        cost: units.unwrap_or(charge.cost),
        ..charge.clone()
    });
    let reading = Reading {
        verdict: Verdict::Allow { delay: Nanos::ZERO },
        figures: granted.figures,
    };
    let outcome = Outcome {
        admitted: units.is_some(),
        readings: smallvec![reading],
        seen: granted.seen.iter().cloned().collect(),
        at: granted.at,
        source: Source::Exact,
        clock_stepped: false,
    };
    (set, outcome)
}

/// Whether a store may have done what it was asked. Who was turned away at once was not heard: a crowd of
/// those must not be remembered.
fn was_sent<T>(answer: &Answer<T>) -> bool {
    match answer {
        Ok(_) | Err(StoreError::Refused { .. }) => true,
        Err(StoreError::Unavailable { waited, .. }) => *waited > Nanos::ZERO,
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Store for Fallback<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let decided = self.charge_by(Nanos::MAX, set, Manner::Charge).await;
        Ok(decided.outcome)
    }

    /// Those that need the store are asked about together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let node = &self.node;
        let remote: Vec<usize> = (0..sets.len())
            .filter(|i| !node.decides(sets[*i]))
            .collect();
        let sent: Vec<&ChargeSet<'_>> = remote.iter().map(|i| sets[*i]).collect();
        let mut outcomes: Vec<Option<Outcome>> = sets.iter().map(|_| None).collect();
        if !sent.is_empty() {
            let decided = self.charge_all(Nanos::MAX, &sent, Manner::Charge).await;
            for (i, decided) in remote.into_iter().zip(decided) {
                outcomes[i] = Some(decided.outcome);
            }
        }
        let decided = outcomes.into_iter().zip(sets);
        let decided = decided.map(|(outcome, set)| {
            Ok(outcome.unwrap_or_else(|| self.decide_locally(set, Manner::Charge)))
        });
        decided.collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        Ok(self.peek_by(Nanos::MAX, set).await)
    }

    /// What was admitted here is given back here while the store does not know of it.
    /// Only the store knows whether an id was refunded before: every node would refund it once. While the store
    /// cannot be called this is an error, and may be sent again.
    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        if self.node.decides(&refund.set) {
            return Err(doubtful());
        }
        self.node.guard.refund(refund).await
    }

    /// Units are drawn in advance from the one true counter only. They are in the mirror like any charge,
    /// and so put back into a store that lost them.
    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        let node = &self.node;
        if node.decides(&ChargeSet::of_one(charge.clone())) {
            return Err(doubtful());
        }
        let sent = node.sent_now();
        let granted = node.guard.grant(charge).await?;
        let (set, outcome) = as_charge(charge, &granted);
        match node.believes_still(&set, &outcome, sent) {
            true => Ok(granted),
            false => Err(doubtful()),
        }
    }

    /// A debt cannot be decided locally: it is owed until the store can be told.
    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let node = &self.node;
        if !node.decides(set) {
            let sent = node.sent_now();
            let answer = node.guard.force(set).await;
            let was_sent = was_sent(&answer);
            if let Ok(outcome) = answer
                && node.believes_still(set, &outcome, sent)
            {
                return Ok(outcome);
            }
            if was_sent {
                node.unconfirmed(set);
            }
        }
        let division = |counter| node.division(counter);
        let now = node.store_time();
        let outcome = node
            .memory
            .local
            .force(set, division, &node.memory.mirror, now);
        node.owes();
        Ok(outcome)
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let manner = Manner::of(reserve);
        let decided = self.charge_by(Nanos::MAX, &reserve.set, manner).await;
        Ok(decided.outcome)
    }

    /// What the store remembers only the store can settle: while it cannot be asked this is an error, and
    /// may be asked again.
    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let reserved = &self.node.memory.reserved;
        if reserved.is_settled(settle) {
            return Ok(Settled::Already);
        }
        let found = reserved.settle(settle, self.time());
        if found.iter().all(|kept| *kept == Kept::Nothing) {
            return self.node.guard.settle(settle).await;
        }
        self.correct(settle, &found).await?;
        Ok(settle.outcome(&found, self.time()))
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.node.guard.seed(seeds).await
    }

    /// A slot that the store gave is remembered here too: it is put back if the store loses it, and
    /// counts toward this node's share while the store is away.
    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        let (node, slots) = (&self.node, &self.node.memory.slots);
        let (sent, life) = (node.runtime.now(), node.known_life());
        let mut asked = false;
        if node.gives_slots() {
            let answer = node.guard.hold(hold).await;
            asked = was_sent(&answer);
            if let Ok(held) = answer
                && node.believes_slots(life)
            {
                if held.granted {
                    slots.given(hold, sent);
                }
                return Ok(held);
            }
        }
        let share = slots_of(hold, node.division(hold.counter()));
        let held = slots.take(hold, share, node.runtime.now());
        if asked && !held.granted {
            slots.leaves(hold, node.runtime.now()); // its answer may only be late
        }
        Ok(held)
    }

    /// Without the store, a slot that this node knows lasts on. Of others nothing can be said.
    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        let (node, slots) = (&self.node, &self.node.memory.slots);
        let (sent, life) = (node.runtime.now(), node.known_life());
        let was_open = slots.is_open(hold, sent);
        let answer = match node.is_exact() {
            true if slots.is_only_here(hold, sent) => node.register(hold).await,
            true => node.guard.renew(hold).await,
            false => Err(doubtful()),
        };
        let now = node.runtime.now();
        let believed = answer.is_ok() && node.believes_slots(life);
        match answer {
            Ok(held) if believed => {
                match (held.granted, was_open && !slots.is_open(hold, now)) {
                    (true, false) => slots.given(hold, sent),
                    (true, true) => {} // given back meanwhile
                    (false, _) => slots.left(hold),
                }
                Ok(held)
            }
            Ok(_) => slots.renew(hold, now).ok_or_else(doubtful),
            Err(error) => slots.renew(hold, now).ok_or(error),
        }
    }

    /// Wherever the slot was taken. If the store cannot be told now, it will be.
    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        let (node, slots) = (&self.node, &self.node.memory.slots);
        slots.leaves(hold, node.runtime.now());
        if node.is_exact() && node.guard.release(hold).await.is_ok() {
            slots.left(hold);
        }
        Ok(())
    }

    /// What only this node has counted is no answer: a client who has used everything would seem to have used
    /// nothing.
    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.node.guard.inspect(set).await
    }

    /// Here nothing is forgotten before the store has answered: whoever is told that nothing was reset has
    /// lost nothing.
    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let (node, memory) = (&self.node, &self.node.memory);
        let there = node.guard.reset(set).await?;
        for charge in &set.charges {
            memory.mirror.forget(charge.counter());
            memory.slots.forget(charge.counter());
        }
        memory.reserved.forget(set);
        Ok(there.max(memory.local.reset(set, node.store_time())))
    }
}
