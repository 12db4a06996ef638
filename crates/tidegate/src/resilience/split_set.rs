//! Splits a charge set into the charges that a layer decides locally and the rest, for the store behind it.
//!
//! Only enforced charges are decided locally, so the rest is a set of its own: given that all local charges allow, the
//! rest is denied exactly if the request is. The layer refunds its local charges when the rest is denied, and only
//! peeks at the rest when it denies locally.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Outcome, Role, Source};

/// The two halves of one set.
pub(super) struct SplitSet<'a> {
    /// Which charges of the whole set are decided locally, in order.
    is_local: SmallVec<[bool; 4]>,
    remote: ChargeSet<'a>,
}

impl<'a> SplitSet<'a> {
    /// Separates the enforced charges of `set` for which `decides_locally` is true.
    pub(super) fn of(set: &ChargeSet<'a>, decides_locally: impl Fn(&Charge<'_>) -> bool) -> Self {
        let is_local = |charge: &Charge<'_>| charge.role == Role::Enforce && decides_locally(charge);
        let is_local: SmallVec<[bool; 4]> = set.charges.iter().map(is_local).collect();
        let remote = set.charges.iter().zip(&is_local).filter(|(_, is_local)| !**is_local);
        SplitSet { remote: set.subset(remote.map(|(charge, _)| charge.clone())), is_local }
    }

    /// The charges for the store behind, if there are any.
    pub(super) fn remote(&self) -> Option<&ChargeSet<'a>> {
        (!self.remote.charges.is_empty()).then_some(&self.remote)
    }

    /// One outcome of both halves, each with one reading per charge of its own. Its time is the earlier one, so that a
    /// refund refunds no more than either would; for a denial, the time of the half that denied. Its source is that of
    /// the half that denied, or else the less exact one. Only the remote half can be degraded.
    pub(super) fn merge(&self, local: Outcome, remote: Outcome) -> Outcome {
        let source = match (local.admitted, remote.admitted) {
            (false, _) => local.source,
            (true, false) => remote.source,
            (true, true) if remote.source == Source::Exact => local.source,
            (true, true) => remote.source,
        };
        Outcome {
            admitted: local.admitted && remote.admitted,
            readings: self.in_order(&local.readings, &remote.readings),
            snapshots: Vec::new(),
            at: match (local.admitted, remote.admitted) {
                (true, true) => local.at.min(remote.at),
                (true, false) => remote.at,
                (false, _) => local.at,
            },
            source,
            degraded: remote.degraded.filter(|_| local.admitted).map(|reason| reason.at(|i| self.remote_position(i))),
            clock_stepped: local.clock_stepped || remote.clock_stepped,
        }
    }

    /// The position of the `i`-th remote charge in the whole set.
    fn remote_position(&self, i: usize) -> usize {
        let mut remote = self.is_local.iter().enumerate().filter(|(_, is_local)| !**is_local);
        remote.nth(i).map_or(0, |(position, _)| position)
    }

    fn in_order(&self, local: &[LimitReading], remote: &[LimitReading]) -> SmallVec<[LimitReading; 4]> {
        let (mut local, mut remote) = (local.iter(), remote.iter());
        let next = |is_local: &bool| {
            if *is_local { local.next() } else { remote.next() }
        };
        self.is_local.iter().filter_map(next).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_core::algorithms::{Algorithm, Figures, Limit, Precision, Retry, Spec, Verdict};
    use tidegate_core::store::{Counting, RuleOptions};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::{Cost, Nanos};

    use super::*;

    /// Charges as words: `l` for leased or `x` for exact, and `e`, `q` or `s` for their role. Expects the charges left
    /// for the store behind, by index.
    #[track_caller]
    fn check(charges: &str, want_remote: &[usize]) {
        let rule = RuleName::new("split");
        let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let leased = RuleOptions { counting: Counting::Leased, ..RuleOptions::DEFAULT };
        let words = charges.split(' ').enumerate();
        let charges = words.map(|(i, word)| Charge {
            subject: Fingerprint::new(i as u128),
            rule: &rule,
            rate: 0,
            limit: Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: match &word[1..] {
                "e" => Role::Enforce,
                "q" => Role::Quota,
                _ => Role::Shadow,
            },
            options: match &word[..1] {
                "l" => &leased,
                _ => &RuleOptions::DEFAULT,
            },
        });
        let set = ChargeSet::of(charges);
        let split = SplitSet::of(&set, |charge| charge.options.counting == Counting::Leased);
        let remote = split.remote().map_or(Vec::new(), |remote| {
            let numbers = remote.charges.iter().map(|c| c.subject.bits() as usize);
            numbers.collect()
        });
        assert_eq!(remote, want_remote);
        let local = (0..set.charges.len()).filter(|i| !remote.contains(i));
        let merged = split.merge(outcome_of(local, true), outcome_of(remote.iter().copied(), true));
        let order: Vec<u64> = merged.readings.iter().map(|r| r.figures.remaining).collect();
        let all: Vec<u64> = (0..set.charges.len() as u64).collect();
        assert_eq!(order, all, "each charge has its own reading");
    }

    /// Readings whose `remaining` is the index of their charge.
    fn outcome_of(charges: impl Iterator<Item = usize>, admitted: bool) -> Outcome {
        let verdict = if admitted {
            Verdict::Allow { delay: Nanos::ZERO }
        } else {
            Verdict::Deny { retry: Retry::After(Nanos::ZERO) }
        };
        let reading = |i: usize| LimitReading {
            verdict,
            figures: Figures { remaining: i as u64, reset_after: Nanos::ZERO, more_after: Nanos::ZERO },
        };
        Outcome {
            admitted,
            readings: charges.map(reading).collect(),
            snapshots: Vec::new(),
            at: Nanos::from_secs(1),
            source: Source::Exact,
            degraded: None,
            clock_stepped: false,
        }
    }

    #[test]
    fn charges_not_decided_locally_are_left_and_merged_in_order() {
        check("le", &[]);
        check("xe", &[0]);
        check("le xe le xe", &[1, 3]);
        check("xe le", &[0]);
    }

    #[test]
    fn quota_and_shadow_charges_are_never_decided_locally() {
        check("lq le ls", &[0, 2]);
    }

    #[test]
    fn the_source_is_the_half_that_denied_or_else_the_less_exact_one() {
        let split = SplitSet::of(&ChargeSet::default(), |_| true);
        let decided = |local: (bool, Source), remote: (bool, Source)| {
            let of = |(admitted, source)| Outcome { source, ..outcome_of(std::iter::empty(), admitted) };
            let merged = split.merge(of(local), of(remote));
            (merged.admitted, merged.source)
        };
        let lease = (true, Source::Lease);
        let cases = [
            (lease, (true, Source::Exact), lease),
            (lease, (true, Source::Fallback), (true, Source::Fallback)),
            (lease, (false, Source::Exact), (false, Source::Exact)),
            ((false, Source::Lenient), (true, Source::Exact), (false, Source::Lenient)),
        ];
        for (local, remote, want) in cases {
            assert_eq!(decided(local, remote), want);
        }
    }
}
