//! A charge set of which some charges are decided here and the rest by the store behind.
//!
//! Only charges that must pass are decided here, so the rest is a set of its own: it is refused exactly
//! if the request is, given that everything here allows. Who decides here gives back what it took when
//! the rest is refused, and asks the rest nothing but a peek when it refuses itself.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Reading, Role, Source};

/// The two halves of one set.
pub(super) struct Split<'a> {
    /// Which charges of the whole set are decided here, in order.
    here: SmallVec<[bool; 4]>,
    rest: ChargeSet<'a>,
}

impl<'a> Split<'a> {
    /// Parts from `set` those that must pass and that `decides_here`.
    pub(super) fn of(set: &ChargeSet<'a>, decides_here: impl Fn(&Charge<'_>) -> bool) -> Self {
        let here = |charge: &Charge<'_>| charge.role == Role::Enforce && decides_here(charge);
        let here: SmallVec<[bool; 4]> = set.charges.iter().map(here).collect();
        let rest = set.charges.iter().zip(&here).filter(|(_, here)| !**here);
        Split {
            rest: set.part(rest.map(|(charge, _)| charge.clone())),
            here,
        }
    }

    /// What the store behind decides, if anything is left to it.
    pub(super) fn rest(&self) -> Option<&ChargeSet<'a>> {
        (!self.rest.charges.is_empty()).then_some(&self.rest)
    }

    /// One outcome of both halves, each with one reading per charge of its own. Its time is the earlier
    /// one, so that a refund gives back no more than either would; of a refusal, that of who refused. It
    /// was decided by who refused, and if nobody did, by what is the least sure.
    pub(super) fn merge(&self, here: Outcome, rest: Outcome) -> Outcome {
        let source = match (here.admitted, rest.admitted) {
            (false, _) => here.source,
            (true, false) => rest.source,
            (true, true) if rest.source == Source::Exact => here.source,
            (true, true) => rest.source,
        };
        Outcome {
            admitted: here.admitted && rest.admitted,
            readings: self.in_order(&here.readings, &rest.readings),
            seen: Vec::new(),
            at: match (here.admitted, rest.admitted) {
                (true, true) => here.at.min(rest.at),
                (true, false) => rest.at,
                (false, _) => here.at,
            },
            source,
            clock_stepped: here.clock_stepped || rest.clock_stepped,
        }
    }

    fn in_order(&self, here: &[Reading], rest: &[Reading]) -> SmallVec<[Reading; 4]> {
        let (mut here, mut rest) = (here.iter(), rest.iter());
        let next = |is_here: &bool| match is_here {
            true => here.next(),
            false => rest.next(),
        };
        self.here.iter().filter_map(next).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_core::algorithms::{Algorithm, Figures, Limit, Precision, Retry, Spec, Verdict};
    use tidegate_core::store::{Counting, Terms};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::{Cost, Nanos};

    use super::*;

    /// Charges as words: `l` for leased or `x` for exact, and `e`, `q` or `s` for their role. What is
    /// left for the store behind, as the numbers of charges.
    #[track_caller]
    fn check(charges: &str, want_rest: &[usize]) {
        let rule = RuleName::new("split");
        let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let leased = Terms {
            counting: Counting::Leased,
            ..Terms::USUAL
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
            terms: match &word[..1] {
                "l" => &leased,
                _ => &Terms::USUAL,
            },
        });
        let set = ChargeSet::of(charges);
        let split = Split::of(&set, |charge| charge.terms.counting == Counting::Leased);
        let rest = split.rest().map_or(Vec::new(), |rest| {
            let numbers = rest.charges.iter().map(|c| c.subject.bits() as usize);
            numbers.collect()
        });
        assert_eq!(rest, want_rest);
        let here = (0..set.charges.len()).filter(|i| !rest.contains(i));
        let merged = split.merge(said(here, true), said(rest.iter().copied(), true));
        let order: Vec<u64> = merged
            .readings
            .iter()
            .map(|r| r.figures.remaining)
            .collect();
        let all: Vec<u64> = (0..set.charges.len() as u64).collect();
        assert_eq!(order, all, "each charge has its own reading");
    }

    /// Readings that tell whose they are.
    fn said(of: impl Iterator<Item = usize>, admitted: bool) -> Outcome {
        let verdict = match admitted {
            true => Verdict::Allow { delay: Nanos::ZERO },
            false => Verdict::Deny {
                retry: Retry::After(Nanos::ZERO),
            },
        };
        let reading = |i: usize| Reading {
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
            seen: Vec::new(),
            at: Nanos::from_secs(1),
            source: Source::Exact,
            clock_stepped: false,
        }
    }

    #[test]
    fn what_is_not_decided_here_is_left_in_order_and_told_in_order() {
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
        let split = Split::of(&ChargeSet::default(), |_| true);
        let decided = |here: (bool, Source), rest: (bool, Source)| {
            let of = |(admitted, source)| Outcome {
                source,
                ..said(std::iter::empty(), admitted)
            };
            let merged = split.merge(of(here), of(rest));
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
        for (here, rest, want) in cases {
            assert_eq!(decided(here, rest), want);
        }
    }
}
