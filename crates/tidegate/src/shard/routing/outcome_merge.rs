//! Merges the outcomes of the steps of one decision into one outcome.

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Retry, Verdict};
use tidegate_core::store::{CounterSnapshot, Degraded, LimitReading, Outcome, Source};
use tidegate_core::units::Nanos;

use crate::shard::refund::Readings;
use crate::shard::routing::groups::ChargeGroup;

/// The readings and snapshots of a request so far.
pub(crate) struct OutcomeMerge {
    readings: SmallVec<[Option<LimitReading>; 4]>,
    snapshots: SmallVec<[Option<CounterSnapshot>; 4]>,
    /// The earliest time of the steps.
    at: Option<Nanos>,
    source: Source,
    /// The worst reason of the steps.
    degraded: Option<Degraded>,
    clock_stepped: bool,
}

/// The reading of a limit for which no step has a reading.
const UNKNOWN_READING: LimitReading = LimitReading {
    verdict: Verdict::Deny { retry: Retry::After(Nanos::ZERO) },
    figures: Figures { remaining: 0, reset_after: Nanos::ZERO, more_after: Nanos::ZERO },
};

impl OutcomeMerge {
    /// For a set of `charges` charges.
    pub(crate) fn new(charges: usize) -> Self {
        OutcomeMerge {
            readings: (0..charges).map(|_| None).collect(),
            snapshots: (0..charges).map(|_| None).collect(),
            at: None,
            source: Source::Exact,
            degraded: None,
            clock_stepped: false,
        }
    }

    /// Adds the outcome of a step. The source of the request is that of the last step that is not exact. Its time is the
    /// earliest: a refund as of a later time would refund units that have drained.
    pub(crate) fn add(&mut self, group: &ChargeGroup<'_>, outcome: &Outcome) {
        self.set_readings(group, &outcome.readings);
        for (i, snapshot) in group.indices.iter().zip(&outcome.snapshots) {
            self.snapshots[*i] = Some(snapshot.clone());
        }
        self.at = Some(self.at.map_or(outcome.at, |at| at.min(outcome.at)));
        self.clock_stepped |= outcome.clock_stepped;
        if outcome.source != Source::Exact {
            self.source = outcome.source;
        }
        self.degraded = self.degraded.max(outcome.degraded.map(|reason| reason.at(|i| group.indices[i])));
    }

    /// Adds the readings of a step that was not taken. They decide nothing, but if a fallback has read them, the outcome is
    /// not exact: a denial that only a fallback has read must not be remembered.
    pub(crate) fn add_peek(&mut self, group: &ChargeGroup<'_>, outcome: &Outcome) {
        self.set_readings(group, &outcome.readings);
        if outcome.source != Source::Exact {
            self.source = outcome.source;
        }
    }

    /// Replaces the readings of a step.
    pub(crate) fn set_readings(&mut self, group: &ChargeGroup<'_>, readings: &Readings) {
        for (i, reading) in group.indices.iter().zip(readings) {
            self.readings[*i] = Some(*reading);
        }
    }

    /// Whether all charges of a step have a reading.
    pub(crate) fn has_readings(&self, group: &ChargeGroup<'_>) -> bool {
        group.indices.iter().all(|i| self.readings[*i].is_some())
    }

    /// Whether the cost of a charge fits.
    pub(crate) fn allows(&self, charge: usize) -> bool {
        self.readings[charge].is_some_and(|reading| reading.verdict.allows())
    }

    /// The merged outcome. It has snapshots only if the request was admitted: of a denied one, some charges are being
    /// refunded.
    pub(crate) fn outcome(self, admitted: bool) -> Outcome {
        let snapshots: Option<Vec<CounterSnapshot>> = self.snapshots.into_iter().collect();
        let readings = self.readings.into_iter();
        Outcome {
            admitted,
            readings: readings.map(|reading| reading.unwrap_or(UNKNOWN_READING)).collect(),
            snapshots: snapshots.filter(|_| admitted).unwrap_or_default(),
            at: self.at.unwrap_or(Nanos::ZERO),
            source: self.source,
            degraded: self
                .degraded
                .map(|reason| if admitted { reason.min(Degraded::StoreUnavailable) } else { reason }),
            clock_stepped: self.clock_stepped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use tidegate_core::store::ChargeSet;

    /// With the latest time, a refund returned units that the first step had drained since.
    #[test]
    fn the_time_of_several_steps_is_the_earliest() {
        let mut merge = OutcomeMerge::new(3);
        for (index, secs) in [(0, 7), (1, 5), (2, 9)] {
            let group = ChargeGroup { location: index, set: ChargeSet::default(), indices: smallvec![index] };
            let step = Outcome::new(true, smallvec![UNKNOWN_READING], Nanos::from_secs(secs), Source::Exact);
            merge.add(&group, &step);
        }
        assert_eq!(merge.outcome(true).at, Nanos::from_secs(5));
    }

    /// Such a denial was remembered for a second as if the store had denied.
    #[test]
    fn a_denial_beside_a_limit_that_a_fallback_has_read_is_not_exact() {
        let mut merge = OutcomeMerge::new(2);
        let group = |index| ChargeGroup { location: index, set: ChargeSet::default(), indices: smallvec![index] };
        let outcome = |source| Outcome::new(false, smallvec![UNKNOWN_READING], Nanos::ZERO, source);
        merge.add(&group(0), &outcome(Source::Exact));
        merge.add_peek(&group(1), &outcome(Source::Fallback));
        assert_eq!(merge.outcome(false).source, Source::Fallback);
    }
}
