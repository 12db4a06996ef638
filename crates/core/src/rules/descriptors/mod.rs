//! The limits of the Envoy reference service: its files read unchanged, checked, merged and found.
//!
//! Each source gives [`DomainForm`]s, which are put together into one tree per domain. Whoever is
//! described by entries is led down that tree; native rules are never found this way, nor these by the
//! attributes of a request. What they count and what they decide is the engine's business.

mod changes;
mod compile;
mod form;
mod listing;
mod read;
mod scalar;
mod stats;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::LazyLock;

pub use form::{DomainForm, LimitForm, NodeForm};
pub use listing::Listing;
pub use stats::stat_name;

pub(crate) use changes::freed;
pub(crate) use compile::{compile, window, written};
pub(crate) use read::{is_of_this_kind, read};
pub(crate) use stats::key as stats_key;
pub(crate) use tree::{Descriptors, Domain, Found};

use crate::described::Unit;
use crate::subject::RuleName;

/// The most levels of a tree, and so the most entries that find anything. Of the files people
/// publish the deepest has five.
pub(crate) const MOST_LEVELS: usize = 12;

/// The most that a window counts: twice that must fit its counter, because debt is kept.
const MOST_COUNTED: u64 = (u32::MAX / 2) as u64;

/// How many of `requests` a window counts.
pub(crate) fn counted_as(requests: u32) -> u64 {
    u64::from(requests).clamp(1, MOST_COUNTED)
}

/// Under which name descriptors are counted per `unit`. It is not that of their rule: a limit that
/// comes with a request counts together with a written one of the same unit, and a count outlives the
/// name and the size of the limit it was made under.
pub(crate) fn counter_name(unit: Unit) -> &'static RuleName {
    static NAMES: LazyLock<[RuleName; 7]> =
        LazyLock::new(|| Unit::ALL.map(|unit| RuleName::new(&format!("envoy/{}", unit.name()))));
    &NAMES[unit as usize]
}
