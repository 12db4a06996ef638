//! How many requests of a rule may be open at once.
//!
//! Only who says when a request begins and ends can be counted by it: to `check` such a rule has nothing
//! to say.

use std::fmt;

use super::fault::shown;
use super::slots::Report;
use super::yaml::Node;

/// How many requests of one subject may be open at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concurrent {
    /// So many, on all nodes together.
    Most(u32),
    /// As many as this node finds it can take, by how long they take.
    Adaptive,
}

/// As a rules file writes it.
impl fmt::Display for Concurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concurrent::Most(most) => most.fmt(f),
            Concurrent::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// Each slot is about 120 bytes in the store: so many of one subject are a megabyte.
const MOST_OPEN: u32 = 10_000;

/// Reads `50` or `adaptive`.
pub(crate) fn read(node: Node<'_>, report: &mut Report<'_>) -> Option<Concurrent> {
    let text = report.text("concurrent", node, "a number such as 50, or adaptive")?;
    let most = match text {
        "adaptive" => return Some(Concurrent::Adaptive),
        number => number.parse::<u32>().ok(),
    };
    let fits = most.filter(|most| (1..=MOST_OPEN).contains(most));
    if fits.is_none() {
        let message = format!(
            "has concurrent {}; write how many requests may be open at once, from 1 to {MOST_OPEN}, \
             or adaptive",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    fits.map(Concurrent::Most)
}
