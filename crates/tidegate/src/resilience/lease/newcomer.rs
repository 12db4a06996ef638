//! Who asks for a place without having it: a counter and how often it was asked for lately.
//!
//! All that a quiet key costs here. It remembers one counter, the last that came, and of that only a mark;
//! so cold counters never keep a hot one out.

use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::tenant::{WORTH_IT, ahead};

/// A counter under a limit that was asked for lately.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Newcomer {
    /// Which one, nearly for certain: a mistake brings a quiet counter in, which then draws nothing.
    mark: u64,
    /// When it was first asked for, in the time that counts.
    pub(super) began: Nanos,
    /// Requests since then, before the last one, and their units.
    pub(super) requests: u64,
    pub(super) units: u64,
    last: u64,
}

impl Newcomer {
    /// Takes note of a request. Whether so many came while a node plans ahead that it is worth to draw.
    pub(super) fn knocks(&mut self, charge: &Charge<'_>, now: Nanos) -> bool {
        let (mark, cost) = (mark(charge), charge.cost.get());
        if self.mark != mark || now.since(self.began) >= ahead(charge) {
            *self = Newcomer {
                mark,
                began: now,
                requests: 0,
                units: 0,
                last: cost,
            };
            return false;
        }
        self.requests += 1;
        self.units = self.units.saturating_add(self.last);
        self.last = cost;
        self.requests + 1 >= WORTH_IT
    }
}

fn mark(charge: &Charge<'_>) -> u64 {
    let counter = charge.counter();
    (counter ^ (counter >> 64)) as u64 ^ u64::from(charge.limit.tag()) ^ charge.limit.capacity()
}
