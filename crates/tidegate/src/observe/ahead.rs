//! Metrics of counting ahead of the store: leases and lenient rules.
//!
//! Unused units of a lease are returned. Units that cannot be returned are lost to all nodes until they have been
//! refilled: a growing share of lapsed units means a failing store, or leases too short for its round trip.

use std::collections::BTreeMap;

use super::exposition::{Exposition, MetricKind};
use crate::ahead::{LeaseStats, Overshoot};

pub(super) fn expose_leases(page: &mut Exposition, leases: &LeaseStats) {
    page.counter("tidegate_leases_drawn_total", "Leases drawn.", leases.leases_drawn);
    page.counter("tidegate_lease_units_granted_total", "Units drawn in leases.", leases.units_drawn);
    page.counter(
        "tidegate_lease_units_returned_total",
        "Units drawn in leases and returned unused.",
        leases.units_returned,
    );
    page.counter(
        "tidegate_lease_units_lapsed_total",
        "Units drawn in leases that were neither used nor returned.",
        leases.units_lapsed,
    );
    page.gauge(
        "tidegate_lease_outstanding_units",
        "Units drawn in leases that this node holds now.",
        leases.units_outstanding,
    );
}

/// Maximum of rules shown: the page is bounded.
const MAX_RULES: usize = 1_000;

pub(super) fn expose_overshoot(page: &mut Exposition, rules: &BTreeMap<Box<str>, Overshoot>) {
    page.family(
        "tidegate_lenient_overshoot_bound_units",
        MetricKind::Gauge,
        "Units by which a lenient rule may be exceeded before all nodes have synced, in the worst case.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.worst_case);
    }
    page.family(
        "tidegate_lenient_overshoot_at_this_pace_units",
        MetricKind::Gauge,
        "The same if no node gets busier than the busiest node was a moment ago.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.at_current_rate);
    }
}
