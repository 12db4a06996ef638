//! What is told of counting that does not ask the store each time.
//!
//! Of units drawn in advance: what is not used goes back, and what cannot go back is lost
//! to everybody until it has flowed in again: a share of lapsed units that grows means a store that
//! fails, or lives too short for its round trip.

use std::collections::BTreeMap;

use super::exposition::{Exposition, Kind};
use crate::resilience::{LeaseFacts, Overshoot};

pub(super) fn expose_leases(page: &mut Exposition, leases: &LeaseFacts) {
    page.single(
        "tidegate_lease_grants_total",
        Kind::Counter,
        "How often units were drawn in advance.",
        leases.grants,
    );
    page.single(
        "tidegate_lease_units_granted_total",
        Kind::Counter,
        "Units drawn in advance.",
        leases.granted,
    );
    page.single(
        "tidegate_lease_units_returned_total",
        Kind::Counter,
        "Units drawn in advance and given back unused.",
        leases.returned,
    );
    page.single(
        "tidegate_lease_units_lapsed_total",
        Kind::Counter,
        "Units drawn in advance that were neither used nor given back.",
        leases.lapsed,
    );
    page.single(
        "tidegate_lease_held_units",
        Kind::Gauge,
        "Units drawn in advance that this node holds now.",
        leases.held,
    );
}

/// Of so many rules at most: the page has its bounds.
const MOST_RULES: usize = 1_000;

pub(super) fn expose_overshoot(page: &mut Exposition, rules: &BTreeMap<Box<str>, Overshoot>) {
    page.family(
        "tidegate_lenient_overshoot_bound_units",
        Kind::Gauge,
        "By how much a lenient rule may be exceeded before all nodes know of each other, whatever happens.",
    );
    for (rule, units) in rules.iter().take(MOST_RULES) {
        page.sample(&[("rule", rule)], units.most);
    }
    page.family(
        "tidegate_lenient_overshoot_at_this_pace_units",
        Kind::Gauge,
        "The same if no node gets busier than the busiest was a moment ago.",
    );
    for (rule, units) in rules.iter().take(MOST_RULES) {
        page.sample(&[("rule", rule)], units.at_this_pace);
    }
}
