//! Concurrency limit of a rule: how many of its requests may be in flight at once.
//!
//! Only callers that report when a request begins and ends, by acquire and release, can be counted this way. A
//! `check` ignores this limit.

use std::fmt;

use super::diagnostics::quoted;
use super::fields::Reporter;
use super::yaml::YamlNode;

/// How many requests of one subject may be in flight at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concurrency {
    /// This many, on all nodes together.
    Fixed(u32),
    /// As many as this node can handle, estimated from how long requests take.
    Adaptive,
}

/// Prints the form of a rules file.
impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concurrency::Fixed(max) => max.fmt(f),
            Concurrency::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// One permit takes about 120 bytes in the store, so this many permits of one subject take about a megabyte.
const MAX_CONCURRENT: u32 = 10_000;

/// Reads `50` or `adaptive`.
pub(crate) fn read(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Concurrency> {
    let text = report.text("concurrent", node, "a number such as 50, or adaptive")?;
    let max = match text {
        "adaptive" => return Some(Concurrency::Adaptive),
        number => number.parse::<u32>().ok(),
    };
    let fits = max.filter(|max| (1..=MAX_CONCURRENT).contains(max));
    if fits.is_none() {
        let message = format!(
            "has concurrent {}; write how many requests may be open at once, from 1 to {MAX_CONCURRENT}, \
             or adaptive",
            quoted(text)
        );
        report.error(node.line(), message);
    }
    fits.map(Concurrency::Fixed)
}
