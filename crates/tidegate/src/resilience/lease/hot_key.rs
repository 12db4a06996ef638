//! Detects hot keys: counts recent requests for a counter that does not have the entry.
//!
//! This is all that a cold key costs here. The detector remembers one counter, the latest, and only by a hash; so cold
//! counters never keep a hot one out.

use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::leased_counter::{MIN_REQUESTS, planning_horizon};

/// The latest counter under a limit, and its recent requests.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HotKeyDetector {
    /// Identifies it, nearly for certain: a collision brings a cold counter in, which then draws nothing.
    key_hash: u64,
    /// When the first of its recent requests came.
    pub(super) began: Nanos,
    /// The requests since then and their units, without the last request.
    pub(super) requests: u64,
    pub(super) units: u64,
    last_cost: u64,
}

impl HotKeyDetector {
    /// Records a request. True if enough requests came within the planning horizon to make a draw worth it.
    pub(super) fn record(&mut self, charge: &Charge<'_>, now: Nanos) -> bool {
        let (key_hash, cost) = (key_hash(charge), charge.cost.get());
        if self.key_hash != key_hash || now.since(self.began) >= planning_horizon(charge) {
            *self = HotKeyDetector { key_hash, began: now, requests: 0, units: 0, last_cost: cost };
            return false;
        }
        self.requests += 1;
        self.units = self.units.saturating_add(self.last_cost);
        self.last_cost = cost;
        self.requests + 1 >= MIN_REQUESTS
    }
}

fn key_hash(charge: &Charge<'_>) -> u64 {
    let counter = charge.counter();
    (counter ^ (counter >> 64)) as u64 ^ u64::from(charge.limit.tag()) ^ charge.limit.capacity()
}
