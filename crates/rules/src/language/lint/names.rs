//! Undeclared names: correct, or misspelt without anybody noticing.

use std::collections::BTreeSet;

use crate::language::diagnostics::Warning;
use crate::language::headers;
use crate::language::rule_set::RuleSet;

/// Warns once about each name, at the first rule that uses it.
pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let mut seen = BTreeSet::new();
    for rule in set.native_rules() {
        let undeclared = rule.attribute_names().filter(|name| !set.declared.knows_attribute(name));
        for name in undeclared.filter(|name| seen.insert((*name).to_owned())) {
            let message = match built_in_equivalent(name) {
                Some(meant) => format!(
                    "uses the attribute `{name}`, which no proxy sends; write `{meant}`, or `attributes: [{name}]` at \
                     the top if callers send it"
                ),
                None => format!(
                    "uses the attribute `{name}`, which is not declared: a caller that spells it \
                     differently goes unnoticed; write `attributes: [{name}]` at the top"
                ),
            };
            warnings.push(super::warning(rule, message));
        }
        let undeclared = rule.attribute_names().filter(|name| !set.declared.attributes.contains(*name));
        for name in undeclared {
            if let Some(warning) = headers::warning(name)
                && seen.insert(name.to_owned())
            {
                let message = format!("uses the attribute `{name}`, {warning}");
                warnings.push(super::warning(rule, message));
            }
        }
    }
    check_units(set, warnings);
}

/// The built-in attribute that other programs call `name`.
fn built_in_equivalent(name: &str) -> Option<&'static str> {
    match name {
        "uri" | "url" | "request_uri" | "uri_path" | "url_path" | "pathname" | "route" | "endpoint" | "location" => {
            Some("path")
        }
        "verb" | "http_method" | "request_method" => Some("method"),
        "hostname" | "authority" | "server_name" | "vhost" => Some("host"),
        "client_ip" | "remote_addr" | "source_ip" | "address" => Some("ip"),
        _ => None,
    }
}

/// Warns about undeclared units. If some units are declared, all should be.
fn check_units(set: &RuleSet, warnings: &mut Vec<Warning>) {
    if set.declared.units.is_empty() {
        return;
    }
    let mut seen = BTreeSet::new();
    for rule in set.rules() {
        let unit = rule.unit.as_deref();
        let undeclared = unit.filter(|unit| !set.declared.units.contains(*unit));
        if let Some(unit) = undeclared.filter(|unit| seen.insert((*unit).to_owned())) {
            let message =
                format!("counts in `{unit}`, which is not among the declared units; write it into `units` at the top");
            warnings.push(super::warning(rule, message));
        }
    }
}
