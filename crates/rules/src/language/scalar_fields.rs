//! Fields whose value is one of a few words, or a duration.

use super::diagnostics::quoted;
use super::fields::{Reporter, closest_name};
use super::rule::{IfMissing, Mode};
use super::yaml::YamlNode;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::rate::parse_positive_duration;
use tidegate_core::store::{OnStoreFailure, OnStoreLate};
use tidegate_core::units::Nanos;

pub(crate) fn read_algorithm(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Algorithm> {
    let text = report.text("algorithm", node, "the name of an algorithm")?;
    let found = Algorithm::from_name(text);
    if found.is_none() {
        let known = Algorithm::ALL.map(Algorithm::name);
        report.error(node.line(), unknown_value("algorithm", text, &known));
    }
    found
}

pub(crate) fn read_on_store_failure(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<OnStoreFailure> {
    Some(read_choice(&Some(node), "on_store_failure", &FAILURE_CHOICES, report))
}

pub(crate) fn read_on_store_late(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<OnStoreLate> {
    Some(read_choice(&Some(node), "on_store_late", &LATE_CHOICES, report))
}

pub(crate) const FLAGS: [(&str, bool); 2] = [("false", false), ("true", true)];
pub(crate) const MODES: [(&str, Mode); 3] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];
pub(crate) const IF_MISSING: [(&str, IfMissing); 2] =
    [("substitute", IfMissing::Substitute), ("skip", IfMissing::Skip)];
const FAILURE_CHOICES: [(&str, OnStoreFailure); 3] =
    [("local", OnStoreFailure::Local), ("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny)];

const LATE_CHOICES: [(&str, OnStoreLate); 2] = [("local", OnStoreLate::Local), ("deny", OnStoreLate::Deny)];

/// One of the known values; the default if the field is absent.
pub(crate) fn read_choice<T: Copy + Default>(
    node: &Option<YamlNode<'_>>,
    field: &str,
    known: &[(&str, T)],
    report: &mut Reporter<'_>,
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
            report.error(node.line(), unknown_value(field, text, &names));
            T::default()
        }
    }
}

pub(crate) fn unknown_value(field: &str, text: &str, known: &[&str]) -> String {
    let found = format!("has {field} {}, which is unknown", quoted(text));
    match closest_name(text, known) {
        Some(near) => format!("{found}; write `{near}`?"),
        None => format!("{found}; write one of {}", known.join(", ")),
    }
}

pub(crate) fn read_duration(node: &Option<YamlNode<'_>>, field: &str, report: &mut Reporter<'_>) -> Option<Nanos> {
    let node = (*node)?;
    let text = report.text(field, node, "a duration such as 250ms")?;
    let span = parse_positive_duration(text);
    if span.is_err() {
        let message =
            format!("has {field} {}, which is no duration above 0; write 250ms, 5s or 2m, for example", quoted(text));
        report.error(node.line(), message);
    }
    span.ok()
}
