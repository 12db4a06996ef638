//! Which charges of a set can be charged in one step, and in which order the steps are taken.
//!
//! Enforced limits come first, from narrow to wide, so that a refusal has touched nothing wider; then
//! budgets, of which one is enough; limits that only watch come last. Pure: places and terms go in.

use std::cmp::Reverse;

use smallvec::SmallVec;
use tidegate_core::store::{ChargeSet, Role};

/// Where each charge of a set is, in order: charges with the same number can be charged in one step.
pub(super) type Places = SmallVec<[usize; 4]>;

/// Charges of one place that are charged in one step.
pub(super) struct Group<'a> {
    /// Where.
    pub(super) place: usize,
    /// What.
    pub(super) set: ChargeSet<'a>,
    /// Which charges of the whole set these are.
    pub(super) of: SmallVec<[usize; 4]>,
}

/// The steps of one decision.
pub(super) struct Steps<'a> {
    /// Each must admit, or the request is refused.
    pub(super) enforced: Vec<Group<'a>>,
    /// If there are any, one must admit.
    pub(super) quotas: Vec<Group<'a>>,
    /// Charged when the request is admitted; they refuse nothing.
    pub(super) shadows: Vec<Group<'a>>,
}

impl<'a> Steps<'a> {
    /// The steps in which `set` is charged.
    pub(super) fn of(set: &ChargeSet<'a>, places: &Places) -> Self {
        let with = |role| grouped(set, places, in_order(set, places, role));
        let mut steps = Steps {
            enforced: with(Role::Enforce),
            quotas: with(Role::Quota),
            shadows: with(Role::Shadow),
        };
        // Budgets in one place, and those who watch, go along with the step that decides last.
        if let [quota] = steps.quotas.as_slice()
            && let Some(last) = steps.enforced.last_mut()
            && last.place == quota.place
        {
            last.append(steps.quotas.remove(0));
        }
        let last = match steps.quotas.as_mut_slice() {
            [] => steps.enforced.last_mut(),
            [quota] => Some(quota),
            _ => None, // the last of several may refuse while the request passes
        };
        if let Some(last) = last
            && let Some(at) = steps.shadows.iter().position(|s| s.place == last.place)
        {
            last.append(steps.shadows.remove(at));
        }
        steps
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Group<'a>> {
        let deciding = self.enforced.iter().chain(&self.quotas);
        deciding.chain(&self.shadows)
    }
}

/// One group for each place.
pub(super) fn by_place<'a>(set: &ChargeSet<'a>, places: &Places) -> Vec<Group<'a>> {
    let mut all: Vec<usize> = (0..places.len()).collect();
    all.sort_by_key(|i| first(places, *i));
    grouped(set, places, all)
}

fn in_order(set: &ChargeSet<'_>, places: &Places, role: Role) -> Vec<usize> {
    let charges = set.charges.iter().enumerate();
    let mut of: Vec<usize> = charges
        .filter(|(_, charge)| charge.role == role)
        .map(|(i, _)| i)
        .collect();
    of.sort_by_key(|i| {
        let narrow = match role {
            Role::Enforce => Reverse(set.charges[*i].terms.named_by),
            Role::Quota | Role::Shadow => Reverse(0), // none keeps another from being charged
        };
        (narrow, first(places, *i))
    });
    of
}

/// The first charge that is where this one is.
fn first(places: &Places, charge: usize) -> usize {
    let mut places_of = places.iter();
    let found = places_of.position(|place| *place == places[charge]);
    found.unwrap_or(charge)
}

fn grouped<'a>(set: &ChargeSet<'a>, places: &Places, order: Vec<usize>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for i in order {
        let charge = set.charges[i].clone();
        match groups.last_mut() {
            Some(last) if last.place == places[i] => {
                last.set.charges.push(charge);
                last.of.push(i);
            }
            _ => groups.push(Group {
                place: places[i],
                set: set.part([charge]),
                of: [i].into_iter().collect(),
            }),
        }
    }
    groups
}

impl<'a> Group<'a> {
    fn append(&mut self, other: Group<'a>) {
        self.set.charges.extend(other.set.charges);
        self.of.extend(other.of);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
    use tidegate_core::store::{Charge, Terms};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::{Cost, Nanos};

    use super::*;

    /// Charges as words: how they are named, `e`, `q` or `s` for their role, and a letter for where
    /// they are. The steps as the numbers of charges, with `|` where the role changes.
    #[track_caller]
    fn check(charges: &str, want: &str) {
        let words: Vec<Vec<char>> = charges.split(' ').map(|w| w.chars().collect()).collect();
        let rule = RuleName::new("groups");
        let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let terms: Vec<Terms> = words.iter().map(|word| terms(word[0])).collect();
        let set = ChargeSet::of(words.iter().zip(&terms).map(|(word, terms)| Charge {
            subject: Fingerprint::new(u128::from(word[2])),
            rule: &rule,
            rate: 0,
            limit: Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: role(word[1]),
            terms,
        }));
        let places: Places = words.iter().map(|word| word[2] as usize).collect();
        let steps = Steps::of(&set, &places);
        let told = |groups: &[Group<'_>]| {
            let numbers = |g: &Group<'_>| g.of.iter().map(usize::to_string).collect::<String>();
            groups.iter().map(numbers).collect::<Vec<_>>().join(" ")
        };
        let all = [&steps.enforced, &steps.quotas, &steps.shadows];
        let all = all.map(|groups| told(groups)).join("|");
        assert_eq!(all, want, "{charges}");
    }

    fn terms(named_by: char) -> Terms {
        Terms {
            named_by: named_by.to_digit(10).map_or(0, |digit| digit as u8),
            ..Terms::USUAL
        }
    }

    fn role(letter: char) -> Role {
        match letter {
            'e' => Role::Enforce,
            'q' => Role::Quota,
            _ => Role::Shadow,
        }
    }

    #[test]
    fn narrow_before_wide_and_what_is_together_in_one_step() {
        check("0ea 1eb 2ec", "2 1 0||");
        check("1ea 1eb 1ea", "02 1||");
        check("0ea 2ea 1eb", "1 2 0||");
        check("1ea 2ea 0eb", "10 2||");
    }

    #[test]
    fn budgets_after_what_is_enforced_and_with_it_where_there_is_one_place() {
        check("0qa 1ea", "10||");
        check("0qa 1eb", "1|0|");
        check("0qa 0qb 1eb", "2|0 1|");
        check("0qa 0qb 0qa", "|02 1|");
    }

    #[test]
    fn those_who_watch_go_with_the_last_to_decide_if_it_alone_decides() {
        check("1ea 0sa", "01||");
        check("1ea 0eb 0sa", "0 1||2");
        check("1ea 0qb 0sb 0sa", "0|12|3");
        check("0qa 0qb 0sb", "|0 1|2");
        check("0sa 0sb", "||0 1");
    }
}
