//! A charge set of which some charges are decided here and the rest by the store behind.
//!
//! Only charges that must pass are decided here, so the rest is a set of its own: it is refused exactly
//! if the request is, given that everything here allows. Who decides here gives back what it took when
//! the rest is refused, and asks the rest nothing but a peek when it refuses itself.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Outcome, Role, Source};

/// The two halves of one set.
pub(super) struct SplitSet<'a> {
    /// Which charges of the whole set are decided here, in order.
    is_local: SmallVec<[bool; 4]>,
    remote: ChargeSet<'a>,
}

impl<'a> SplitSet<'a> {
    /// Parts from `set` those that must pass and that `decides_locally`.
    pub(super) fn of(set: &ChargeSet<'a>, decides_locally: impl Fn(&Charge<'_>) -> bool) -> Self {
        let is_local =
            |charge: &Charge<'_>| charge.role == Role::Enforce && decides_locally(charge);
        let is_local: SmallVec<[bool; 4]> = set.charges.iter().map(is_local).collect();
        let remote = set
            .charges
            .iter()
            .zip(&is_local)
            .filter(|(_, is_local)| !**is_local);
        SplitSet {
            remote: set.subset(remote.map(|(charge, _)| charge.clone())),
            is_local,
        }
    }

    /// What the store behind decides, if anything is left to it.
    pub(super) fn remote(&self) -> Option<&ChargeSet<'a>> {
        (!self.remote.charges.is_empty()).then_some(&self.remote)
    }

    /// One outcome of both halves, each with one reading per charge of its own. Its time is the earlier
    /// one, so that a refund gives back no more than either would; of a refusal, that of who refused. It
    /// was decided by who refused, and if nobody did, by what is the least sure.
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
            clock_stepped: local.clock_stepped || remote.clock_stepped,
        }
    }

    fn in_order(
        &self,
        local: &[LimitReading],
        remote: &[LimitReading],
    ) -> SmallVec<[LimitReading; 4]> {
        let (mut local, mut remote) = (local.iter(), remote.iter());
        let next = |is_local: &bool| match is_local {
            true => local.next(),
            false => remote.next(),
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

    /// Charges as words: `l` for leased or `x` for exact, and `e`, `q` or `s` for their role. What is
    /// left for the store behind, as the numbers of charges.
    #[track_caller]
    fn check(charges: &str, want_remote: &[usize]) {
        let rule = RuleName::new("split");
        let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let leased = RuleOptions {
            counting: Counting::Leased,
            ..RuleOptions::DEFAULT
        };
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
        let merged = split.merge(
            outcome_of(local, true),
            outcome_of(remote.iter().copied(), true),
        );
        let order: Vec<u64> = merged
            .readings
            .iter()
            .map(|r| r.figures.remaining)
            .collect();
        let all: Vec<u64> = (0..set.charges.len() as u64).collect();
        assert_eq!(order, all, "each charge has its own reading");
    }

    /// Readings that tell whose they are.
    fn outcome_of(of: impl Iterator<Item = usize>, admitted: bool) -> Outcome {
        let verdict = match admitted {
            true => Verdict::Allow { delay: Nanos::ZERO },
            false => Verdict::Deny {
                retry: Retry::After(Nanos::ZERO),
            },
        };
        let reading = |i: usize| LimitReading {
            verdict,
            figures: Figures {
                remaining: i as u64,
                reset_after: Nanos::ZERO,
                more_after: Nanos::ZERO,
            },
        };
        Outcome {
            admitted,
            readings: of.map(reading).collect(),
            snapshots: Vec::new(),
            at: Nanos::from_secs(1),
            source: Source::Exact,
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
    fn budgets_and_those_who_watch_are_never_decided_here() {
        check("lq le ls", &[0, 2]);
    }

    #[test]
    fn who_refused_decided_and_else_the_least_sure() {
        let split = SplitSet::of(&ChargeSet::default(), |_| true);
        let decided = |local: (bool, Source), remote: (bool, Source)| {
            let of = |(admitted, source)| Outcome {
                source,
                ..outcome_of(std::iter::empty(), admitted)
            };
            let merged = split.merge(of(local), of(remote));
            (merged.admitted, merged.source)
        };
        let lease = (true, Source::Lease);
        let cases = [
            (lease, (true, Source::Exact), lease),
            (lease, (true, Source::Fallback), (true, Source::Fallback)),
            (lease, (false, Source::Exact), (false, Source::Exact)),
            (
                (false, Source::Lenient),
                (true, Source::Exact),
                (false, Source::Lenient),
            ),
        ];
        for (local, remote, want) in cases {
            assert_eq!(decided(local, remote), want);
        }
    }
}
