//! Rules that can never apply: always replaced, or with a match that contradicts itself.

use crate::rules::condition::{Condition, Wanted};
use crate::rules::fault::Warning;
use crate::rules::model::{Mode, Purpose, Rule};
use crate::rules::set::RuleSet;

pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    for rule in set.rules().iter().filter(|rule| rule.mode != Mode::Off) {
        if let Some(condition) = contradiction(rule) {
            let message = format!(
                "can never apply: its match wants {0} to be {1}, and its `not` refuses just that; \
                 change one of them",
                condition.attribute.name(),
                condition.wanted
            );
            warnings.push(super::warning(rule, message));
        }
    }
    for other in set.rules() {
        for at in &other.replaces {
            let rule = &set.rules()[*at as usize];
            if rule.mode != Mode::Off && always_replaced(rule, other, *at) {
                let message = format!(
                    "can never apply: `{}` replaces it and applies wherever it does; remove one of them",
                    other.name
                );
                warnings.push(super::warning(rule, message));
            }
        }
    }
}

/// The paths a rule asks for, as written.
pub(super) fn paths(rule: &Rule) -> impl Iterator<Item = &str> {
    let path = |condition: &&Condition| condition.attribute.name() == "path";
    let asked = rule.matching.all.iter().filter(path);
    asked.flat_map(|condition| match &condition.wanted {
        Wanted::Texts(texts) => texts
            .literals
            .iter()
            .map(|text| &**text)
            .chain(texts.globs.iter().map(|glob| glob.as_str()))
            .collect::<Vec<_>>(),
        Wanted::Nets(_) => Vec::new(),
    })
}

/// A condition all of whose values the `not` of the same rule refuses.
fn contradiction(rule: &Rule) -> Option<&Condition> {
    rule.matching.all.iter().find(|wanted| {
        let refusing = rule.matching.none.iter();
        let mut same = refusing.filter(|refused| refused.attribute == wanted.attribute);
        same.any(|refused| covers(refused, wanted))
    })
}

/// Whether `wide` holds wherever `narrow` does. A glob is covered by itself and by "anything" only.
fn covers(wide: &Condition, narrow: &Condition) -> bool {
    if wide.attribute != narrow.attribute {
        return false;
    }
    match (&wide.wanted, &narrow.wanted) {
        (Wanted::Nets(wide), Wanted::Nets(narrow)) => narrow
            .iter()
            .all(|net| wide.iter().any(|wide| wide.contains(net))),
        (Wanted::Texts(wide), Wanted::Texts(narrow)) => {
            narrow.literals.iter().all(|text| wide.hold(text))
                && narrow.globs.iter().all(|glob| {
                    let mut known = wide.globs.iter();
                    known.any(|known| known == glob || known.as_str() == "**")
                })
        }
        _ => false,
    }
}

/// Whether `other`, which replaces `rule`, applies wherever it does.
fn always_replaced(rule: &Rule, other: &Rule, position: u32) -> bool {
    let everywhere = other.matching.none.is_empty()
        && other.unit.is_none()
        && other.mode != Mode::Off
        && other.if_missing == Default::default();
    let wider = |wide: &Condition| rule.matching.all.iter().any(|narrow| covers(wide, narrow));
    let purpose = if rule.counts_only_permits {
        Purpose::Acquire
    } else {
        Purpose::Check
    };
    everywhere && other.displaces(rule, position, purpose) && other.matching.all.iter().all(wider)
}
