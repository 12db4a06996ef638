//! What is told of counting that does not ask the store each time.
//!
//! Of units drawn in advance: what is not used goes back, and what cannot go back is lost
//! to everybody until it has flowed in again: a share of lapsed units that grows means a store that
//! fails, or lives too short for its round trip.

use std::collections::BTreeMap;

use super::exposition::{Exposition, MetricKind};
use crate::resilience::{LeaseStats, Overshoot};

pub(super) fn expose_leases(page: &mut Exposition, leases: &LeaseStats) {
    page.single(
        "tidegate_lease_grants_total",
        MetricKind::Counter,
        "How often units were drawn in advance.",
        leases.leases_drawn,
    );
    page.single(
        "tidegate_lease_units_granted_total",
        MetricKind::Counter,
        "Units drawn in advance.",
        leases.units_drawn,
    );
    page.single(
        "tidegate_lease_units_returned_total",
        MetricKind::Counter,
        "Units drawn in advance and given back unused.",
        leases.units_returned,
    );
    page.single(
        "tidegate_lease_units_lapsed_total",
        MetricKind::Counter,
        "Units drawn in advance that were neither used nor given back.",
        leases.units_lapsed,
    );
    page.single(
        "tidegate_lease_held_units",
        MetricKind::Gauge,
        "Units drawn in advance that this node holds now.",
        leases.units_outstanding,
    );
}

/// Of so many rules at most: the page has its bounds.
const MAX_RULES: usize = 1_000;

pub(super) fn expose_overshoot(page: &mut Exposition, rules: &BTreeMap<Box<str>, Overshoot>) {
    page.family(
        "tidegate_lenient_overshoot_bound_units",
        MetricKind::Gauge,
        "By how much a lenient rule may be exceeded before all nodes know of each other, whatever happens.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.worst_case);
    }
    page.family(
        "tidegate_lenient_overshoot_at_this_pace_units",
        MetricKind::Gauge,
        "The same if no node gets busier than the busiest was a moment ago.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.at_current_rate);
    }
}
