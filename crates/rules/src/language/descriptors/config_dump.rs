//! The limits of all domains, one per line, as the reference service lists them.

use std::fmt;

use super::tree::{DescriptorLevel, Descriptors, NodeLimit};

/// Prints a line for each limit, in the order of the files:
/// `domain.key_value: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false`.
#[derive(Clone, Copy, Debug)]
pub struct ConfigDump<'r>(pub(crate) &'r Descriptors);

impl fmt::Display for ConfigDump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.domains.iter().try_for_each(|domain| write_level(&domain.root, f))
    }
}

fn write_level(level: &DescriptorLevel, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for node in &level.nodes {
        if let Some(limited) = &node.limit {
            write_limit(limited, f)?;
        }
        self::write_level(&node.children, f)?;
    }
    Ok(())
}

fn write_limit(limited: &NodeLimit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let unit = limited.counted.map_or("unknown", |counted| counted.unit.name());
    writeln!(
        f,
        "{}: unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}",
        limited.path,
        unit.to_ascii_uppercase(),
        limited.requests_per_unit,
        limited.shadow_mode,
        limited.quota_mode
    )
}
