//! The limits of all domains, one per line, as the reference service lists them.

use std::fmt;

use super::tree::{Descriptors, Level, Limited};

/// Prints a line for each limit, in the order of the files:
/// `domain.key_value: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false`.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'r>(pub(crate) &'r Descriptors);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .domains
            .iter()
            .try_for_each(|domain| level(&domain.top, f))
    }
}

fn level(level: &Level, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for node in &level.nodes {
        if let Some(limited) = &node.limited {
            line(limited, f)?;
        }
        self::level(&node.below, f)?;
    }
    Ok(())
}

fn line(limited: &Limited, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let unit = limited
        .quantity
        .map_or("unknown", |quantity| quantity.unit.name());
    writeln!(
        f,
        "{}: unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}",
        limited.path,
        unit.to_ascii_uppercase(),
        limited.requests,
        limited.shadow,
        limited.quota
    )
}
