//! Who asks for a place without having it: a counter and how often it was asked for lately.
//!
//! All that a quiet key costs here. It remembers one counter, the last that came, and of that only a mark;
//! so cold counters never keep a hot one out.

use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::leased_counter::{MIN_REQUESTS, planning_horizon};

/// A counter under a limit that was asked for lately.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HotKeyDetector {
    /// Which one, nearly for certain: a mistake brings a quiet counter in, which then draws nothing.
    key_hash: u64,
    /// When it was first asked for, in the time that counts.
    pub(super) began: Nanos,
    /// Requests since then, before the last one, and their units.
    pub(super) requests: u64,
    pub(super) units: u64,
    last_cost: u64,
}

impl HotKeyDetector {
    /// Takes note of a request. Whether so many came while a node plans ahead that it is worth to draw.
    pub(super) fn record(&mut self, charge: &Charge<'_>, now: Nanos) -> bool {
        let (key_hash, cost) = (key_hash(charge), charge.cost.get());
        if self.key_hash != key_hash || now.since(self.began) >= planning_horizon(charge) {
            *self = HotKeyDetector {
                key_hash,
                began: now,
                requests: 0,
                units: 0,
                last_cost: cost,
            };
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
