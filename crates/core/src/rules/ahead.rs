//! How a rule counts what it admits, and how many of its requests may be open at once.

use super::choices::unknown;
use super::fault::shown;
use super::model::Concurrent;
use super::slots::Report;
use super::span::parse_span;
use super::yaml::Node;
use crate::store::{Abilities, Counting};
use crate::units::Nanos;

/// How long units wait that were drawn in advance, where a rule does not say: twice the longest time
/// over which a node plans its needs, and within what every node is to see of the others.
const USUAL_LEASE: Nanos = Nanos::from_millis(100);
/// A shorter one would not outlast a few round trips.
const SHORTEST_LEASE: Nanos = Nanos::from_millis(5);
/// A longer one would keep units from others for longer than anybody waits.
const LONGEST_LEASE: Nanos = Nanos::from_secs(60);

/// How a rule counts, and for how long it may draw in advance. Where only one node counts, every way
/// is exact.
pub(crate) fn counting(
    node: Option<Node<'_>>,
    store: Abilities,
    report: &mut Report<'_>,
) -> (Counting, Option<Nanos>) {
    let exact = (Counting::Exact, None);
    let Some(node) = node else { return exact };
    let names = Counting::ALL.map(Counting::name);
    let Some(text) = report.text("counting", node, "exact, leased or lenient") else {
        return exact;
    };
    let (word, span) = match text.split_once(' ') {
        Some((word, span)) => (word, Some(span.trim())),
        None => (text, None),
    };
    let known = Counting::ALL.into_iter().find(|c| c.name() == word);
    let lasts = match (known, span) {
        (Some(Counting::Leased), None) => Some(USUAL_LEASE),
        (Some(Counting::Leased), Some(span)) => lease(span, node, report),
        (Some(_), None) => None,
        _ => {
            report.fault(node.line(), unknown("counting", text, &names));
            return exact;
        }
    };
    match store.is_shared() {
        true => (known.unwrap_or_default(), lasts),
        false => exact,
    }
}

fn lease(text: &str, node: Node<'_>, report: &mut Report<'_>) -> Option<Nanos> {
    let span = parse_span(text).ok();
    let fits = span.filter(|span| (SHORTEST_LEASE..=LONGEST_LEASE).contains(span));
    if fits.is_none() {
        let message = format!(
            "has leases of {}; write a duration from 5ms to 1m, such as `counting: leased 100ms`",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    fits
}

/// More would be a list that a store goes through for longer than a decision should take.
const MOST_OPEN: u32 = 10_000;

/// How many requests may be open at once.
pub(crate) fn concurrent(node: Node<'_>, report: &mut Report<'_>) -> Option<Concurrent> {
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
