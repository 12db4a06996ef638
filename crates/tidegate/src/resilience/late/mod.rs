//! Deciding when the store is healthy and its reply is late.
//!
//! A late reply is not an outage: the store counts on, and its reply arrives. `ledger` is the policy, a pure
//! state machine; `part` is what a node may admit meanwhile. This file is the lock around them.

mod ledger;
mod part;

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub(super) use self::ledger::{
    CREDIT_LASTS, ChargeFate, Claim, LateEffect, LateId, LateLedger, Payment, Payments,
};
pub(super) use self::part::LateView;

/// The late charges of one node. Nearly always empty, which costs a decision one load.
#[derive(Default)]
pub(super) struct LateCharges {
    ledger: Mutex<LateLedger>,
    active: AtomicBool,
}

impl LateCharges {
    /// Whether there may be anything.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Whether a reply may change what can be admitted of a counter.
    pub(super) fn is_unsettled(&self, counter: u128) -> bool {
        self.is_active() && self.ledger.lock().is_unsettled(counter)
    }

    /// Runs one event of the state machine.
    pub(super) fn update<T>(&self, event: impl FnOnce(&mut LateLedger) -> T) -> T {
        let mut ledger = self.ledger.lock();
        let done = event(&mut ledger);
        self.active.store(!ledger.is_empty(), Ordering::Release);
        done
    }

    /// The same where nothing was ever late: then there is nothing to do.
    pub(super) fn update_active<T: Default>(&self, event: impl FnOnce(&mut LateLedger) -> T) -> T {
        if self.is_active() {
            self.update(event)
        } else {
            T::default()
        }
    }
}
