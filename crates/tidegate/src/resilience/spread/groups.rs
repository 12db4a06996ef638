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
                set: ChargeSet {
                    charges: [charge].into_iter().collect(),
                },
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
