//! What is told of units drawn in advance. What is not used goes back, and what cannot go back is lost
//! to everybody until it has flowed in again: a share of lapsed units that grows means a store that
//! fails, or lives too short for its round trip.

use super::exposition::{Exposition, Kind};
use crate::resilience::LeaseFacts;

pub(super) fn expose(page: &mut Exposition, leases: &LeaseFacts) {
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
