//! Counting mode of a rule: reads `counting` and checks that it fits the other options.
//!
//! With a store that only one node uses, every mode is exact, and the rule is compiled as `exact`. Options that
//! conflict are an error all the same, so that a file is valid for every store or for none.

use super::diagnostics::quoted;
use super::fields::Reporter;
use super::scalar_fields::unknown_value;
use super::yaml::YamlNode;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::rate::parse_positive_duration;
use tidegate_core::store::{Capabilities, Counting, Durability};
use tidegate_core::units::Nanos;

/// Default lifetime of a lease: twice the longest time over which a node plans its needs, and within the time in
/// which every node must see the counts of the others.
const DEFAULT_LEASE: Nanos = Nanos::from_millis(100);
/// A shorter lease would not outlast a few round trips.
const MIN_LEASE: Nanos = Nanos::from_millis(5);
/// A longer lease would keep units from other nodes for longer than any client waits.
const MAX_LEASE: Nanos = Nanos::from_secs(60);

/// Counting mode of a rule, and the lifetime of its leases.
#[derive(Clone, Copy, Default)]
pub(crate) struct CountingOptions {
    pub(crate) counting: Counting,
    pub(crate) lease_duration: Option<Nanos>,
}

/// The options of the rule that the counting mode must fit.
#[derive(Clone, Copy)]
pub(crate) struct CountingContext {
    pub(crate) algorithm: Algorithm,
    pub(crate) durability: Durability,
    pub(crate) store: Capabilities,
}

/// Reads `exact`, `leased`, `leased 250ms` or `lenient`.
pub(crate) fn read(node: Option<YamlNode<'_>>, context: CountingContext, report: &mut Reporter<'_>) -> CountingOptions {
    let Some(node) = node else {
        return CountingOptions::default();
    };
    let Some(options) = parse_counting(node, report) else {
        return CountingOptions::default();
    };
    if let Some(message) = conflict(options.counting, context) {
        report.error(node.line(), message);
        return CountingOptions::default();
    }
    if context.store.is_shared() { options } else { CountingOptions::default() }
}

fn parse_counting(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<CountingOptions> {
    let text = report.text("counting", node, "exact, leased or lenient")?;
    let (word, span) = match text.split_once(' ') {
        Some((word, span)) => (word, Some(span.trim())),
        None => (text, None),
    };
    let known = Counting::ALL.into_iter().find(|c| c.name() == word);
    let lease_duration = match (known, span) {
        (Some(Counting::Leased), None) => Some(DEFAULT_LEASE),
        (Some(Counting::Leased), Some(span)) => Some(parse_lease(span, node, report)?),
        (Some(_), None) => None,
        (_, span) => {
            report.error(node.line(), invalid_counting(text, known.zip(span)));
            return None;
        }
    };
    Some(CountingOptions { counting: known?, lease_duration })
}

/// The error for a text that is not a counting mode, or for a mode with a duration that it does not take.
fn invalid_counting(text: &str, with_duration: Option<(Counting, &str)>) -> String {
    match with_duration {
        Some((counting, span)) => format!(
            "has counting {}, but only leased takes a duration such as {}; write {}",
            quoted(text),
            quoted(span),
            counting.name()
        ),
        None => unknown_value("counting", text, &Counting::ALL.map(Counting::name)),
    }
}

fn parse_lease(text: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Nanos> {
    let span = parse_positive_duration(text).ok();
    let fits = span.filter(|span| (MIN_LEASE..=MAX_LEASE).contains(span));
    if fits.is_none() {
        let message = format!(
            "has leases of {}; write a duration from 5ms to 1m, such as `counting: leased 100ms`",
            quoted(text)
        );
        report.error(node.line(), message);
    }
    fits
}

fn conflict(counting: Counting, context: CountingContext) -> Option<String> {
    let algorithm = context.algorithm;
    if counting != Counting::Exact && context.durability.is_required() {
        return Some(format!(
            "has counting {} with durability {}, which requires every count to be safe before its \
             request passes; write `counting: exact`, or `durability: none`",
            counting.name(),
            context.durability.name()
        ));
    }
    let ordered = matches!(algorithm, Algorithm::SlidingLog | Algorithm::LeakyQueue);
    (counting == Counting::Leased && ordered).then(|| {
        format!(
            "has counting leased with algorithm {algorithm}, which keeps requests in order and cannot \
             lease units in advance; write `counting: exact` or another algorithm"
        )
    })
}
