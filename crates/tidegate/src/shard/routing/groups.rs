//! Groups the charges of a set that can be charged in one step, and orders the steps.
//!
//! Enforced limits come first, from narrow to wide, so that a denial has touched nothing wider; then quotas, of which
//! one is enough; then shadow limits. Pure: locations and options go in. Knows no shard.

use std::cmp::Reverse;

use smallvec::SmallVec;
use tidegate_core::store::{ChargeSet, Role};

/// The location of each charge of a set, in order: charges with the same number can be charged in one step.
pub(crate) type LocationIndices = SmallVec<[usize; 4]>;

/// Charges of one location that are charged in one step.
pub(crate) struct ChargeGroup<'a> {
    /// Which location.
    pub(crate) location: usize,
    /// The charges.
    pub(crate) set: ChargeSet<'a>,
    /// Their indices in the whole set.
    pub(crate) indices: SmallVec<[usize; 4]>,
}

/// The steps of one decision.
pub(crate) struct ChargeSteps<'a> {
    /// Each must admit, or the request is denied.
    pub(crate) enforced: Vec<ChargeGroup<'a>>,
    /// If there are any, one must admit.
    pub(crate) quotas: Vec<ChargeGroup<'a>>,
    /// Charged when the request is admitted; they deny nothing.
    pub(crate) shadows: Vec<ChargeGroup<'a>>,
}

impl<'a> ChargeSteps<'a> {
    /// The steps in which to charge `set`.
    pub(crate) fn of(set: &ChargeSet<'a>, locations: &LocationIndices) -> Self {
        let with = |role| grouped(set, locations, in_order(set, locations, role));
        let mut steps =
            ChargeSteps { enforced: with(Role::Enforce), quotas: with(Role::Quota), shadows: with(Role::Shadow) };
        // Quotas in a single location, and shadow charges, join the step that decides last.
        if let [quota] = steps.quotas.as_slice()
            && let Some(last) = steps.enforced.last_mut()
            && last.location == quota.location
        {
            last.append(steps.quotas.remove(0));
        }
        let last = match steps.quotas.as_mut_slice() {
            [] => steps.enforced.last_mut(),
            [quota] => Some(quota),
            _ => None, // the last of several may deny while the request passes
        };
        if let Some(last) = last
            && let Some(at) = steps.shadows.iter().position(|s| s.location == last.location)
        {
            last.append(steps.shadows.remove(at));
        }
        steps
    }

    /// All groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ChargeGroup<'a>> {
        let deciding = self.enforced.iter().chain(&self.quotas);
        deciding.chain(&self.shadows)
    }
}

/// One group per location.
pub(crate) fn by_location<'a>(set: &ChargeSet<'a>, locations: &LocationIndices) -> Vec<ChargeGroup<'a>> {
    let mut all: Vec<usize> = (0..locations.len()).collect();
    all.sort_by_key(|i| first(locations, *i));
    grouped(set, locations, all)
}

fn in_order(set: &ChargeSet<'_>, locations: &LocationIndices, role: Role) -> Vec<usize> {
    let charges = set.charges.iter().enumerate();
    let mut indices: Vec<usize> = charges.filter(|(_, charge)| charge.role == role).map(|(i, _)| i).collect();
    indices.sort_by_key(|i| {
        let narrow = match role {
            Role::Enforce => Reverse(set.charges[*i].options.specificity),
            Role::Quota | Role::Shadow => Reverse(0), // none prevents another from being charged
        };
        (narrow, first(locations, *i))
    });
    indices
}

/// The first charge in the same location.
fn first(locations: &LocationIndices, charge: usize) -> usize {
    let mut iter = locations.iter();
    let found = iter.position(|location| *location == locations[charge]);
    found.unwrap_or(charge)
}

fn grouped<'a>(set: &ChargeSet<'a>, locations: &LocationIndices, order: Vec<usize>) -> Vec<ChargeGroup<'a>> {
    let mut groups: Vec<ChargeGroup<'a>> = Vec::new();
    for i in order {
        let charge = set.charges[i].clone();
        match groups.last_mut() {
            Some(last) if last.location == locations[i] => {
                last.set.charges.push(charge);
                last.indices.push(i);
            }
            _ => groups.push(ChargeGroup {
                location: locations[i],
                set: set.subset([charge]),
                indices: [i].into_iter().collect(),
            }),
        }
    }
    groups
}

impl<'a> ChargeGroup<'a> {
    fn append(&mut self, other: ChargeGroup<'a>) {
        self.set.charges.extend(other.set.charges);
        self.indices.extend(other.indices);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
    use tidegate_core::store::{Charge, RuleOptions};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::{Cost, Nanos};

    use super::*;

    /// Charges as words: their specificity, `e`, `q` or `s` for their role, and a letter for their location. Expects
    /// the steps as indices of charges, with `|` where the role changes.
    #[track_caller]
    fn check(charges: &str, want: &str) {
        let words: Vec<Vec<char>> = charges.split(' ').map(|w| w.chars().collect()).collect();
        let rule = RuleName::new("groups");
        let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let options: Vec<RuleOptions> = words.iter().map(|word| options_of(word[0])).collect();
        let set = ChargeSet::of(words.iter().zip(&options).map(|(word, options)| Charge {
            subject: Fingerprint::new(u128::from(word[2])),
            rule: &rule,
            rate: 0,
            limit: Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: role(word[1]),
            options,
        }));
        let locations: LocationIndices = words.iter().map(|word| word[2] as usize).collect();
        let steps = ChargeSteps::of(&set, &locations);
        let render = |groups: &[ChargeGroup<'_>]| {
            let numbers = |g: &ChargeGroup<'_>| g.indices.iter().map(usize::to_string).collect::<String>();
            groups.iter().map(numbers).collect::<Vec<_>>().join(" ")
        };
        let all = [&steps.enforced, &steps.quotas, &steps.shadows];
        let all = all.map(|groups| render(groups)).join("|");
        assert_eq!(all, want, "{charges}");
    }

    fn options_of(specificity: char) -> RuleOptions {
        RuleOptions { specificity: specificity.to_digit(10).map_or(0, |digit| digit as u8), ..RuleOptions::DEFAULT }
    }

    fn role(letter: char) -> Role {
        match letter {
            'e' => Role::Enforce,
            'q' => Role::Quota,
            _ => Role::Shadow,
        }
    }

    #[test]
    fn narrow_limits_come_before_wide_ones_and_one_location_is_one_step() {
        check("0ea 1eb 2ec", "2 1 0||");
        check("1ea 1eb 1ea", "02 1||");
        check("0ea 2ea 1eb", "1 2 0||");
        check("1ea 2ea 0eb", "10 2||");
    }

    #[test]
    fn quotas_follow_enforced_limits_and_join_them_in_a_single_location() {
        check("0qa 1ea", "10||");
        check("0qa 1eb", "1|0|");
        check("0qa 0qb 1eb", "2|0 1|");
        check("0qa 0qb 0qa", "|02 1|");
    }

    #[test]
    fn shadows_join_the_last_deciding_step_if_it_alone_decides() {
        check("1ea 0sa", "01||");
        check("1ea 0eb 0sa", "0 1||2");
        check("1ea 0qb 0sb 0sa", "0|12|3");
        check("0qa 0qb 0sb", "|0 1|2");
        check("0sa 0sb", "||0 1");
    }
}
