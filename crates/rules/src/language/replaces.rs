//! Resolves the names in `replaces` to positions, and rejects rules that replace each other.

use rustc_hash::FxHashMap;

use super::diagnostics::{RuleError, RuleErrors, SourceLocation, quoted};
use super::fields::closest_name;
use super::rule::Rule;
use super::rule_reader::ReplacedName;

pub(crate) fn resolve(
    rules: &mut [Rule],
    replaces: &[ReplacedName<'_>],
    by_name: &FxHashMap<Box<str>, u32>,
    errors: &mut RuleErrors,
) {
    // Among very many names the nearest is a guess, and finding it takes long.
    let names: Vec<&str> = match by_name.len() {
        ..=1_000 => by_name.keys().map(|name| &**name).collect(),
        _ => Vec::new(),
    };
    for named in replaces.chunk_by(|a, b| a.rule == b.rule) {
        let at = named[0].rule;
        let rule = &mut rules[at as usize];
        let mut positions = Vec::with_capacity(named.len());
        for ReplacedName { name, line, .. } in named {
            match by_name.get(*name) {
                Some(other) if *other == at => {
                    report_error(rule, *line, "replaces itself; remove it from `replaces`", errors);
                }
                Some(other) => positions.push(*other),
                None => {
                    // Finding a suggestion takes long, and this error is only counted.
                    let known = if errors.is_full() { &[] } else { &*names };
                    report_error(rule, *line, &unknown_rule_message(rule, name, known), errors);
                }
            }
        }
        positions.sort_unstable();
        positions.dedup();
        rule.replaces = positions.into();
    }
    reject_cycles(rules, errors);
}

fn unknown_rule_message(rule: &Rule, name: &str, known: &[&str]) -> String {
    let names: Vec<&str> = known.iter().copied().filter(|other| *other != rule.name.as_str()).collect();
    let found = format!("replaces {}, which is no rule", quoted(name));
    match closest_name(name, &names) {
        Some(near) => format!("{found}; write `{near}`?"),
        None => format!("{found}; write the name of one"),
    }
}

/// Rejects cycles: rules that replace each other, over any number of steps, would all be gone where all apply.
fn reject_cycles(rules: &[Rule], errors: &mut RuleErrors) {
    let mut state = vec![VisitState::Unvisited; rules.len()];
    for start in 0..rules.len() {
        if rules[start].replaces.is_empty() || state[start] != VisitState::Unvisited {
            continue;
        }
        let mut path = vec![(start, 0)];
        state[start] = VisitState::InProgress;
        while let Some((at, next)) = path.last_mut() {
            let Some(other) = rules[*at].replaces.get(*next).map(|other| *other as usize) else {
                state[*at] = VisitState::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match state[other] {
                VisitState::Unvisited => {
                    state[other] = VisitState::InProgress;
                    path.push((other, 0));
                }
                VisitState::InProgress => report_cycle(rules, *at, other, errors),
                VisitState::Done => {}
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum VisitState {
    Unvisited,
    InProgress,
    Done,
}

fn report_cycle(rules: &[Rule], at: usize, other: usize, errors: &mut RuleErrors) {
    let rule = &rules[at];
    let message = format!(
        "replaces `{}`, which replaces it in turn, so that neither would apply; remove one of the two",
        rules[other].name
    );
    report_error(rule, rule.location.line, &message, errors);
}

fn report_error(rule: &Rule, line: u32, message: &str, errors: &mut RuleErrors) {
    errors.push(RuleError {
        location: SourceLocation { line, ..rule.location.clone() },
        rule: Some(rule.name.as_str().into()),
        message: message.to_owned(),
    });
}
