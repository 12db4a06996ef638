//! Fields whose value is one of a few words, or a duration.

use super::fault::shown;
use super::model::{IfMissing, Mode};
use super::slots::{Report, nearest};
use super::span::parse_span;
use super::yaml::Node;
use crate::algorithms::Algorithm;
use crate::store::{OnStoreFailure, OnStoreLate};
use crate::units::Nanos;

pub(crate) fn algorithm(node: Node<'_>, report: &mut Report<'_>) -> Option<Algorithm> {
    let text = report.text("algorithm", node, "the name of an algorithm")?;
    let found = Algorithm::from_name(text);
    if found.is_none() {
        let known = Algorithm::ALL.map(Algorithm::name);
        report.fault(node.line(), unknown("algorithm", text, &known));
    }
    found
}

pub(crate) fn on_store_failure(node: Node<'_>, report: &mut Report<'_>) -> Option<OnStoreFailure> {
    Some(choice(&Some(node), "on_store_failure", &FAILURES, report))
}

pub(crate) fn on_store_late(node: Node<'_>, report: &mut Report<'_>) -> Option<OnStoreLate> {
    Some(choice(&Some(node), "on_store_late", &LATE_CHOICES, report))
}

pub(crate) const FLAGS: [(&str, bool); 2] = [("false", false), ("true", true)];
pub(crate) const MODES: [(&str, Mode); 3] = [
    ("enforce", Mode::Enforce),
    ("shadow", Mode::Shadow),
    ("off", Mode::Off),
];
pub(crate) const IF_MISSING: [(&str, IfMissing); 2] = [
    ("substitute", IfMissing::Substitute),
    ("skip", IfMissing::Skip),
];
const FAILURES: [(&str, OnStoreFailure); 3] = [
    ("local", OnStoreFailure::Local),
    ("allow", OnStoreFailure::Allow),
    ("deny", OnStoreFailure::Deny),
];

const LATE_CHOICES: [(&str, OnStoreLate); 2] =
    [("local", OnStoreLate::Local), ("deny", OnStoreLate::Deny)];

/// One of the known values; the usual one where nothing is said.
pub(crate) fn choice<T: Copy + Default>(
    node: &Option<Node<'_>>,
    field: &str,
    known: &[(&str, T)],
    report: &mut Report<'_>,
) -> T {
    let Some(node) = node else {
        return T::default();
    };
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let Some(text) = report.text(field, *node, &names.join(" or ")) else {
        return T::default();
    };
    match known.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => *value,
        None => {
            report.fault(node.line(), unknown(field, text, &names));
            T::default()
        }
    }
}

pub(crate) fn unknown(field: &str, text: &str, known: &[&str]) -> String {
    let found = format!("has {field} {}, which is unknown", shown(text));
    match nearest(text, known) {
        Some(near) => format!("{found}; write `{near}`?"),
        None => format!("{found}; write one of {}", known.join(", ")),
    }
}

pub(crate) fn span(node: &Option<Node<'_>>, field: &str, report: &mut Report<'_>) -> Option<Nanos> {
    let node = (*node)?;
    let text = report.text(field, node, "a duration such as 250ms")?;
    let span = parse_span(text);
    if span.is_err() {
        let message = format!(
            "has {field} {}, which is no duration above 0; write 250ms, 5s or 2m, for example",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    span.ok()
}
