//! What the steps of one decision said, put together as one outcome.

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Retry, Verdict};
use tidegate_core::store::{CounterSnapshot, LimitReading, Outcome, Source};
use tidegate_core::units::Nanos;

use super::groups::ChargeGroup;
use crate::resilience::refund::Readings;

/// What has been said so far of a request.
pub(super) struct OutcomeMerge {
    readings: SmallVec<[Option<LimitReading>; 4]>,
    seen: SmallVec<[Option<CounterSnapshot>; 4]>,
    /// When the first step was answered.
    at: Option<Nanos>,
    source: Source,
    clock_stepped: bool,
}

/// What is told of a limit that no step has spoken of.
const UNKNOWN_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny {
        retry: Retry::After(Nanos::ZERO),
    },
    figures: Figures {
        remaining: 0,
        reset_after: Nanos::ZERO,
        more_after: Nanos::ZERO,
    },
};

impl OutcomeMerge {
    /// Of a set of so many charges.
    pub(super) fn new(charges: usize) -> Self {
        OutcomeMerge {
            readings: (0..charges).map(|_| None).collect(),
            seen: (0..charges).map(|_| None).collect(),
            at: None,
            source: Source::Exact,
            clock_stepped: false,
        }
    }

    /// A step was answered. The request is decided by what is the least sure of all, and at the earliest of
    /// their times: a refund that took one for charged later than it was would give back what has drained.
    pub(super) fn add(&mut self, group: &ChargeGroup<'_>, outcome: &Outcome) {
        self.set_readings(group, &outcome.readings);
        for (i, seen) in group.indices.iter().zip(&outcome.snapshots) {
            self.seen[*i] = Some(seen.clone());
        }
        self.at = Some(self.at.map_or(outcome.at, |at| at.min(outcome.at)));
        self.clock_stepped |= outcome.clock_stepped;
        if outcome.source != Source::Exact {
            self.source = outcome.source;
        }
    }

    /// The limits of a step stand otherwise now.
    pub(super) fn set_readings(&mut self, group: &ChargeGroup<'_>, readings: &Readings) {
        for (i, reading) in group.indices.iter().zip(readings) {
            self.readings[*i] = Some(*reading);
        }
    }

    /// Whether a step has been answered.
    pub(super) fn has_readings(&self, group: &ChargeGroup<'_>) -> bool {
        group.indices.iter().all(|i| self.readings[*i].is_some())
    }

    /// Whether the cost of a charge fits.
    pub(super) fn allows(&self, charge: usize) -> bool {
        self.readings[charge].is_some_and(|reading| reading.verdict.allows())
    }

    /// What was seen is told only of a request that passed: of one that did not, some of it is being given
    /// back.
    pub(super) fn outcome(self, admitted: bool) -> Outcome {
        let seen: Option<Vec<CounterSnapshot>> = self.seen.into_iter().collect();
        let readings = self.readings.into_iter();
        Outcome {
            admitted,
            readings: readings
                .map(|reading| reading.unwrap_or(UNKNOWN_READING))
                .collect(),
            snapshots: seen.filter(|_| admitted).unwrap_or_default(),
            at: self.at.unwrap_or(Nanos::ZERO),
            source: self.source,
            clock_stepped: self.clock_stepped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use tidegate_core::store::ChargeSet;

    /// Told as of the latest, a refund gave back what the first had drained since.
    #[test]
    fn what_was_charged_in_several_steps_was_charged_with_the_first() {
        let mut merge = OutcomeMerge::new(3);
        for (of, secs) in [(0, 7), (1, 5), (2, 9)] {
            let group = ChargeGroup {
                location: of,
                set: ChargeSet::default(),
                indices: smallvec![of],
            };
            let step = Outcome {
                admitted: true,
                readings: smallvec![UNKNOWN_READING],
                snapshots: Vec::new(),
                at: Nanos::from_secs(secs),
                source: Source::Exact,
                clock_stepped: false,
            };
            merge.add(&group, &step);
        }
        assert_eq!(merge.outcome(true).at, Nanos::from_secs(5));
    }
}
