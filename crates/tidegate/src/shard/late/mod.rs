//! Charges that are decided before their reply arrives, because the store is healthy and late.
//!
//! A late reply is not an outage: the store keeps counting, and its reply arrives. `ledger` is the policy, a pure state
//! machine. `late_view` computes what a node may admit in the meantime. This file is the lock around the ledger.

mod late_view;
mod ledger;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use self::late_view::LateView;
pub(crate) use self::ledger::{CREDIT_TTL, Claim, LateChargeResult, LateEffect, LateId, LateLedger, Payment, Payments};

/// The late charges of one node. Nearly always empty, which costs a decision one load.
#[derive(Default)]
pub(crate) struct LateCharges {
    ledger: Mutex<LateLedger>,
    active: AtomicBool,
    /// How many events it has had.
    events: AtomicU64,
}

impl LateCharges {
    /// Whether the ledger may hold anything.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// How many events it has had: it changes by nothing else.
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// Whether a reply may change what can be admitted of a counter.
    pub(crate) fn has_late_charges(&self, counter: u128) -> bool {
        self.read(|ledger| ledger.has_late_charges(counter)).unwrap_or(false)
    }

    /// Runs one event of the state machine under the lock.
    pub(crate) fn update<T>(&self, event: impl FnOnce(&mut LateLedger) -> T) -> T {
        let mut ledger = self.ledger.lock();
        let result = event(&mut ledger);
        self.active.store(!ledger.is_empty(), Ordering::Release);
        self.events.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// Reads the state machine under the lock, if it may hold anything.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&LateLedger) -> T) -> Option<T> {
        self.is_active().then(|| look(&self.ledger.lock()))
    }

    /// Does the same as `update` if the ledger may hold anything. Otherwise the event has no effect and is skipped.
    pub(crate) fn update_active<T: Default>(&self, event: impl FnOnce(&mut LateLedger) -> T) -> T {
        if self.is_active() { self.update(event) } else { T::default() }
    }
}
