//! Turns the names in `replaces` into positions, and refuses rules that replace each other.

use rustc_hash::FxHashMap;

use super::fault::{Fault, Faults, Place, shown};
use super::model::Rule;
use super::rule_reader::{Read, Replaces};
use super::slots::nearest;

pub(crate) fn resolve(
    read: Read<'_>,
    by_name: &FxHashMap<Box<str>, u32>,
    faults: &mut Faults,
) -> Vec<Rule> {
    let mut rules = read.rules;
    // Among very many names the nearest is a guess, and finding it takes long.
    let names: Vec<&str> = match by_name.len() {
        ..=1_000 => by_name.keys().map(|name| &**name).collect(),
        _ => Vec::new(),
    };
    for named in read.replaces.chunk_by(|a, b| a.rule == b.rule) {
        let at = named[0].rule;
        let rule = &mut rules[at as usize];
        let mut positions = Vec::with_capacity(named.len());
        for Replaces { name, line, .. } in named {
            match by_name.get(*name) {
                Some(other) if *other == at => {
                    tell(
                        rule,
                        *line,
                        "replaces itself; remove it from `replaces`",
                        faults,
                    );
                }
                Some(other) => positions.push(*other),
                None => {
                    // A guess takes long, and nobody is told this one.
                    let known = if faults.is_full() { &[] } else { &*names };
                    tell(rule, *line, &unknown(rule, name, known), faults);
                }
            }
        }
        positions.sort_unstable();
        positions.dedup();
        rule.replaces = positions.into();
    }
    refuse_circles(&rules, faults);
    rules
}

fn unknown(rule: &Rule, name: &str, known: &[&str]) -> String {
    let others = known.iter().copied();
    let names: Vec<&str> = others
        .filter(|other| *other != rule.name.as_str())
        .collect();
    let found = format!("replaces {}, which is no rule", shown(name));
    match nearest(name, &names) {
        Some(near) => format!("{found}; write `{near}`?"),
        None => format!("{found}; write the name of one"),
    }
}

/// Rules that replace each other, over however many steps, would all be gone where all apply.
fn refuse_circles(rules: &[Rule], faults: &mut Faults) {
    let mut state = vec![Visit::Not; rules.len()];
    for start in 0..rules.len() {
        if rules[start].replaces.is_empty() || state[start] != Visit::Not {
            continue;
        }
        let mut path = vec![(start, 0)];
        state[start] = Visit::Open;
        while let Some((at, next)) = path.last_mut() {
            let Some(other) = rules[*at].replaces.get(*next).map(|other| *other as usize) else {
                state[*at] = Visit::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match state[other] {
                Visit::Not => {
                    state[other] = Visit::Open;
                    path.push((other, 0));
                }
                Visit::Open => tell_circle(rules, *at, other, faults),
                Visit::Done => {}
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Visit {
    Not,
    Open,
    Done,
}

fn tell_circle(rules: &[Rule], at: usize, other: usize, faults: &mut Faults) {
    let rule = &rules[at];
    let message = format!(
        "replaces `{}`, which replaces it in turn, so that neither would apply; remove one of the two",
        rules[other].name
    );
    tell(rule, rule.place.line, &message, faults);
}

fn tell(rule: &Rule, line: u32, message: &str, faults: &mut Faults) {
    faults.push(Fault {
        place: Place {
            line,
            ..rule.place.clone()
        },
        rule: Some(rule.name.as_str().into()),
        message: message.to_owned(),
    });
}
