//! How a rule counts what it admits: reads `counting`, and says what it goes with.
//!
//! Where only one node counts, every way is exact, and a rule is read as if it said so. What makes no
//! sense together is a fault all the same, so that a file is good for every store or for none.

use super::choices::unknown;
use super::fault::shown;
use super::slots::Report;
use super::span::parse_span;
use super::yaml::Node;
use crate::algorithms::Algorithm;
use crate::store::{Abilities, Counting, Durability};
use crate::units::Nanos;

/// How long units wait that were drawn in advance, where a rule does not say: twice the longest time
/// over which a node plans its needs, and within what every node is to see of the others.
const USUAL_LEASE: Nanos = Nanos::from_millis(100);
/// A shorter one would not outlast a few round trips.
const SHORTEST_LEASE: Nanos = Nanos::from_millis(5);
/// A longer one would keep units from others for longer than anybody waits.
const LONGEST_LEASE: Nanos = Nanos::from_secs(60);

/// How a rule counts, and for how long it may draw in advance.
#[derive(Clone, Copy, Default)]
pub(crate) struct Way {
    pub(crate) counting: Counting,
    pub(crate) leased: Option<Nanos>,
}

/// What else the rule says that has to go with it.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    pub(crate) algorithm: Algorithm,
    pub(crate) durability: Durability,
    pub(crate) store: Abilities,
}

/// Reads `exact`, `leased`, `leased 250ms` or `lenient`.
pub(crate) fn read(node: Option<Node<'_>>, beside: Beside, report: &mut Report<'_>) -> Way {
    let Some(node) = node else {
        return Way::default();
    };
    let Some(way) = way(node, report) else {
        return Way::default();
    };
    if let Some(message) = clash(way.counting, beside) {
        report.fault(node.line(), message);
        return Way::default();
    }
    match beside.store.is_shared() {
        true => way,
        false => Way::default(),
    }
}

fn way(node: Node<'_>, report: &mut Report<'_>) -> Option<Way> {
    let text = report.text("counting", node, "exact, leased or lenient")?;
    let (word, span) = match text.split_once(' ') {
        Some((word, span)) => (word, Some(span.trim())),
        None => (text, None),
    };
    let known = Counting::ALL.into_iter().find(|c| c.name() == word);
    let leased = match (known, span) {
        (Some(Counting::Leased), None) => Some(USUAL_LEASE),
        (Some(Counting::Leased), Some(span)) => Some(lease(span, node, report)?),
        (Some(_), None) => None,
        (_, span) => {
            report.fault(node.line(), not_counting(text, known.zip(span)));
            return None;
        }
    };
    Some(Way {
        counting: known?,
        leased,
    })
}

/// What is wrong with a text that is no way to count, or one with a span that means nothing to it.
fn not_counting(text: &str, spanned: Option<(Counting, &str)>) -> String {
    match spanned {
        Some((counting, span)) => format!(
            "has counting {}, but only leases have a life such as {}; write {}",
            shown(text),
            shown(span),
            counting.name()
        ),
        None => unknown("counting", text, &Counting::ALL.map(Counting::name)),
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

fn clash(counting: Counting, beside: Beside) -> Option<String> {
    let algorithm = beside.algorithm;
    if counting != Counting::Exact && beside.durability.waits() {
        return Some(format!(
            "has counting {} with durability {}, which wants every count safe before its request \
             passes; write `counting: exact`, or `durability: none`",
            counting.name(),
            beside.durability.name()
        ));
    }
    let ordered = matches!(algorithm, Algorithm::SlidingLog | Algorithm::LeakyQueue);
    (counting == Counting::Leased && ordered).then(|| {
        format!(
            "has counting leased with algorithm {algorithm}, which keeps an order that units drawn \
             in advance have no place in; write `counting: exact` or another algorithm"
        )
    })
}
