//! Charging to the store what was admitted without it: paced, the largest debts first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Probe, Store};
use tidegate_core::units::Nanos;

use super::{Node, PER_CALL, SLOTS_AT_ONCE, by_slot};
use crate::resilience::event::Event;
use crate::resilience::join::join_all;
use crate::resilience::owed::{Due, DueCause};
use crate::runtime::Runtime;

/// What became of debts that were sent to the store.
#[derive(Clone, PartialEq, Eq)]
enum Pushed {
    /// Charged; of each, the units that are lost again.
    Charged(Vec<u64>),
    /// The store cannot use a record.
    Refused,
    Failed,
}

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// What was admitted locally is charged soon, if there is any and the store can be asked.
    pub(in crate::resilience) fn owes(self: &Arc<Self>) {
        self.report_dropped();
        if self.exact.load(Ordering::Acquire) && !self.guard.is_open() {
            self.push_soon(self.settings.push_soon);
        }
    }

    /// What a late reply left is charged at once.
    pub(super) fn push_now(self: &Arc<Self>) {
        self.report_dropped();
        if self.exact.load(Ordering::Acquire) && !self.guard.is_open() {
            self.push_soon(Nanos::ZERO);
        }
    }

    fn report_dropped(&self) {
        let units = self.memory.local.owed.take_dropped();
        if units > 0 {
            (self.watcher)(Event::PendingDropped { units });
        }
    }

    /// Charges the bulk of what is owed, and believes the store then: the first exact decision is to
    /// know of it. Not for long, because decisions are local meanwhile.
    pub(super) fn settle_soon(self: &Arc<Self>) {
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

    /// After a recovery many nodes have much to say: not all at once.
    pub(super) fn push_spread(self: &Arc<Self>) {
        self.push_soon(self.runtime.jitter(self.settings.push_spread));
    }

    fn push_soon(self: &Arc<Self>, wait: Nanos) {
        if self.memory.local.owed.is_empty() || self.pushing.swap(true, Ordering::AcqRel) {
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
        let slot = |subject| self.guard.slot(subject);
        let due = self.memory.local.owed.due(slot, self.store_time());
        for (i, batch) in due.chunks(self.settings.push_batch).enumerate() {
            if i > 0 {
                self.runtime.sleep(self.settings.push_pause).await;
            }
            if !self.may_push() || self.runtime.now() >= until {
                break;
            }
            for slots in by_slot(batch).chunks(SLOTS_AT_ONCE) {
                let pushing = slots.iter().map(|counters| self.push_slot(counters));
                if join_all(pushing).await.contains(&false) {
                    break;
                }
            }
        }
        !due.is_empty()
    }

    /// Charges debts of one slot. Whether the store has taken them all.
    async fn push_slot(self: &Arc<Self>, counters: &[u128]) -> bool {
        for some in counters.chunks(PER_CALL) {
            if !self.push(some).await {
                return false;
            }
        }
        true
    }

    async fn push(self: &Arc<Self>, counters: &[u128]) -> bool {
        let now = self.store_time();
        let begin = |counter: &u128| self.memory.local.owed.begin(*counter, now);
        let due = counters.iter().filter_map(begin);
        // What must be safe elsewhere may have to wait for that; the rest is not to wait with it.
        let (safe, plain): (Vec<Due>, Vec<Due>) = due.partition(|due| due.charge.waits());
        let pushed = self.push_together(&plain).await;
        self.push_together(&safe).await;
        pushed
    }

    /// Charges debts in one call. If the store cannot use a record of theirs, each on its own, so that the
    /// others do not wait with that one. Whether the store serves.
    async fn push_together(self: &Arc<Self>, due: &[Due]) -> bool {
        if due.is_empty() {
            return true; // time has settled it
        }
        match self.push_once(due).await {
            Pushed::Charged(_) => true,
            Pushed::Failed => false,
            Pushed::Refused => {
                if due.len() > 1 {
                    for one in due {
                        self.push_once(std::slice::from_ref(one)).await;
                    }
                }
                true
            }
        }
    }

    async fn push_once(self: &Arc<Self>, due: &[Due]) -> Pushed {
        let set = ChargeSet::of(due.iter().map(|due| due.charge.owing(due.cost)));
        let sent = self.sent_now();
        let answer = self.guard.charge_debt(&set).await;
        let pushed = match answer {
            Ok(outcome) => self
                .swallowed(&set, &outcome, sent)
                .map_or(Pushed::Failed, Pushed::Charged),
            Err(error) if self.guard.is_refused(&error) => Pushed::Refused,
            Err(_) => Pushed::Failed,
        };
        let (owed, now) = (&self.memory.local.owed, self.store_time());
        for (i, one) in due.iter().enumerate() {
            match &pushed {
                Pushed::Charged(swallowed) => owed.swallowed(one.counter, swallowed[i], now),
                Pushed::Refused if due.len() == 1 => owed.refused(one.counter, now),
                // They are sent again at once, each on its own.
                Pushed::Refused => {}
                Pushed::Failed => owed.failed(one.counter, now),
            }
        }
        if let Pushed::Charged(swallowed) = &pushed {
            let units: u64 = due.iter().map(|due| due.cost.get()).sum();
            let units = units - swallowed.iter().sum::<u64>();
            let late = due.iter().all(|due| due.cause == DueCause::Late);
            (self.watcher)(if late {
                Event::LatePushed { units }
            } else {
                let counters = due.len();
                Event::Pushed { counters, units }
            });
        } else if pushed == Pushed::Failed {
            self.unconfirmed(&set);
        }
        pushed
    }
}
