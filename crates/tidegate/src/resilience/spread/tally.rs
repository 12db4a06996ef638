//! What the steps of one decision said, put together as one outcome.

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Retry, Verdict};
use tidegate_core::store::{Outcome, Reading, Seen, Source};
use tidegate_core::units::Nanos;

use super::groups::Group;
use crate::resilience::undo::Readings;

/// What has been said so far of a request.
pub(super) struct Tally {
    readings: SmallVec<[Option<Reading>; 4]>,
    seen: SmallVec<[Option<Seen>; 4]>,
    /// When the first step was answered.
    at: Option<Nanos>,
    source: Source,
    clock_stepped: bool,
}

/// What is told of a limit that no step has spoken of.
const UNKNOWN: Reading = Reading {
    verdict: Verdict::Deny {
        retry: Retry::After(Nanos::ZERO),
    },
    figures: Figures {
        remaining: 0,
        reset_after: Nanos::ZERO,
        more_after: Nanos::ZERO,
    },
};

impl Tally {
    /// Of a set of so many charges.
    pub(super) fn new(charges: usize) -> Self {
        Tally {
            readings: (0..charges).map(|_| None).collect(),
            seen: (0..charges).map(|_| None).collect(),
            at: None,
            source: Source::Exact,
            clock_stepped: false,
        }
    }

    /// A step was answered. The request is decided by what is the least sure of all, and at the earliest of
    /// their times: a refund that took one for charged later than it was would give back what has drained.
    pub(super) fn note(&mut self, group: &Group<'_>, outcome: &Outcome) {
        self.read(group, &outcome.readings);
        for (i, seen) in group.of.iter().zip(&outcome.seen) {
            self.seen[*i] = Some(seen.clone());
        }
        self.at = Some(self.at.map_or(outcome.at, |at| at.min(outcome.at)));
        self.clock_stepped |= outcome.clock_stepped;
        if outcome.source != Source::Exact {
            self.source = outcome.source;
        }
    }

    /// The limits of a step stand otherwise now.
    pub(super) fn read(&mut self, group: &Group<'_>, readings: &Readings) {
        for (i, reading) in group.of.iter().zip(readings) {
            self.readings[*i] = Some(*reading);
        }
    }

    /// Whether a step has been answered.
    pub(super) fn knows(&self, group: &Group<'_>) -> bool {
        group.of.iter().all(|i| self.readings[*i].is_some())
    }

    /// Whether the cost of a charge fits.
    pub(super) fn allows(&self, charge: usize) -> bool {
        self.readings[charge].is_some_and(|reading| reading.verdict.allows())
    }

    /// What was seen is told only of a request that passed: of one that did not, some of it is being given
    /// back.
    pub(super) fn outcome(self, admitted: bool) -> Outcome {
        let seen: Option<Vec<Seen>> = self.seen.into_iter().collect();
        let readings = self.readings.into_iter();
        Outcome {
            admitted,
            readings: readings.map(|said| said.unwrap_or(UNKNOWN)).collect(),
            seen: seen.filter(|_| admitted).unwrap_or_default(),
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
        let mut tally = Tally::new(3);
        for (of, secs) in [(0, 7), (1, 5), (2, 9)] {
            let group = Group {
                place: of,
                set: ChargeSet::default(),
                of: smallvec![of],
            };
            let step = Outcome {
                admitted: true,
                readings: smallvec![UNKNOWN],
                seen: Vec::new(),
                at: Nanos::from_secs(secs),
                source: Source::Exact,
                clock_stepped: false,
            };
            tally.note(&group, &step);
        }
        assert_eq!(tally.outcome(true).at, Nanos::from_secs(5));
    }
}
