//! What a node has admitted and the store does not count yet, to be kept over a restart.
//!
//! These are the units of the write-back queue, and those whose reply is outstanding: a node that restarts
//! hears no reply, so they count as debt. The node's share counts them too, so a restart inside an outage
//! gives no fresh share.

use std::collections::BTreeMap;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::Terms;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::memory::Memory;
use super::owned::OwnedCharge;

/// Units of one counter that were admitted and are not charged yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingUnits {
    /// Whose counter.
    pub subject: Fingerprint,
    /// Which rule's.
    pub rule: RuleName,
    /// Which of the rule's rates.
    pub rate: u8,
    /// The tag of the limit that they were admitted under.
    pub tag: u32,
    /// How many.
    pub units: u64,
    /// The store's time by which they are counted.
    pub at: Nanos,
}

impl Memory {
    /// Everything that is pending at the store's time `at`, in the order of counters.
    pub(super) fn pending(&self, at: Nanos) -> Vec<PendingUnits> {
        let mut all: BTreeMap<u128, PendingUnits> = BTreeMap::new();
        let mut add = |charge: &OwnedCharge, units: u64| {
            let known = all.entry(charge.counter()).or_insert_with(|| PendingUnits {
                subject: charge.subject,
                rule: charge.rule().clone(),
                rate: charge.rate(),
                tag: charge.limit.tag(),
                units: 0,
                at,
            });
            known.units = known.units.saturating_add(units);
        };
        self.local.owed.each(at, &mut add);
        if self.late.is_active() {
            let waiting: Vec<OwnedCharge> = self.late.update(|l| l.all_waiting().collect());
            waiting
                .iter()
                .for_each(|charge| add(charge, charge.units()));
        }
        all.into_values().collect()
    }

    /// Goes on with what was pending before a restart, under the limit that the rule has now.
    pub(super) fn restore(&self, pending: &PendingUnits, limit: &Limit, terms: Terms) {
        let Some(cost) = Cost::new(pending.units) else {
            return;
        };
        let charge = OwnedCharge::new(
            pending.subject,
            pending.rule.clone(),
            pending.rate,
            limit.clone(),
            cost,
            terms,
        );
        self.local.owed.restore(charge, pending.at);
    }
}
