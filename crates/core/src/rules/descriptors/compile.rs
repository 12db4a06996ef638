//! From what sources say to trees and rules: checks, merges, and names every limit.
//!
//! Every limit becomes a rule, so that decisions, metrics and logs have a name for it: the path of its
//! node. For limits that come with a request each domain has one rule more.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::form::{DomainForm, LimitForm, NodeForm};
use super::tree::{Descriptors, Domain, Level, Limited, Node, Quantity};
use super::{MOST_LEVELS, counted_as};
use crate::algorithms::{Algorithm, Limit, Precision, Spec};
use crate::described::Unit;
use crate::rules::dialect::Dialect;
use crate::rules::fault::{Fault, Faults, Place, shown};
use crate::rules::model::{By, Mode, Rates, Rule, RuleKind};
use crate::store::Terms;
use crate::subject::RuleName;

/// Puts `forms` together. Their rules go behind those in `rules`.
pub(crate) fn compile(
    forms: &[DomainForm],
    dialect: &Dialect,
    rules: &mut Vec<Rule>,
    faults: &mut Faults,
) -> Descriptors {
    let mut compiler = Compiler {
        dialect,
        rules,
        faults,
        rates: FxHashMap::default(),
    };
    let mut descriptors = Descriptors::new(dialect);
    for form in forms {
        compiler.take(form, &mut descriptors);
    }
    for domain in &mut descriptors.domains {
        domain.brought = compiler.brought(domain);
    }
    descriptors
}

impl Descriptors {
    /// The domain that `form` is of, made if it is the first.
    fn domain_for(&mut self, form: &DomainForm) -> &mut Domain {
        let next = self.domains.len() as u32; // there are fewer files than that
        let at = *self
            .by_name
            .entry(form.domain.as_str().into())
            .or_insert(next);
        if at == next {
            self.domains.push(Domain {
                name: form.domain.as_str().into(),
                place: form.place.clone(),
                top: Level::default(),
                brought: 0,
            });
        }
        &mut self.domains[at as usize]
    }
}

struct Compiler<'c> {
    dialect: &'c Dialect,
    rules: &'c mut Vec<Rule>,
    faults: &'c mut Faults,
    /// Limits that are written alike are one.
    rates: FxHashMap<(u32, Unit), Arc<Rates>>,
}

/// Where a node stands in its tree.
struct Within<'w> {
    /// What its path begins with.
    path: &'w str,
    place: &'w Place,
    keys: &'w [&'w str],
}

impl Compiler<'_> {
    fn take(&mut self, form: &DomainForm, descriptors: &mut Descriptors) {
        if form.domain.is_empty() {
            let message = "has no domain, or an empty one; write `domain: ...`";
            self.fault(&form.place, 0, message.to_owned());
        }
        let within = Within {
            path: &form.domain,
            place: &form.place,
            keys: &[],
        };
        let known = descriptors.domain(&form.domain).is_some();
        let domain = descriptors.domain_for(form);
        if known && !self.dialect.merge_domains {
            let message = format!(
                "has the domain {}, which stands in {} too; keep it in one file, or have domains merged",
                shown(&form.domain),
                domain.place
            );
            self.fault(&form.place, 0, message);
            // Only to see what else is wrong.
            return self.level(&form.nodes, &within, &mut Level::default());
        }
        self.level(&form.nodes, &within, &mut domain.top);
    }

    fn level(&mut self, forms: &[NodeForm], within: &Within<'_>, level: &mut Level) {
        if !forms.is_empty() && within.keys.len() >= MOST_LEVELS {
            let message = format!(
                "has descriptors under {} that are more than {MOST_LEVELS} deep; write fewer levels",
                shown(within.path)
            );
            return self.fault(within.place, forms[0].line, message);
        }
        for form in forms {
            let (line, node) = (form.line, self.node(form, within));
            if let Err(known) = level.add(node) {
                let message = format!(
                    "has the composite key {} twice below {}, the first at {}; keep one",
                    shown(&known.joined),
                    shown(within.path),
                    known.place
                );
                self.fault(within.place, line, message);
            }
        }
    }

    fn node(&mut self, form: &NodeForm, within: &Within<'_>) -> Node {
        let joined = match form.value.as_str() {
            "" => form.key.clone(),
            value => format!("{}_{value}", form.key),
        };
        if form.key.is_empty() {
            let message = format!(
                "has a descriptor below {} without a key, or with an empty one; write `key: ...`",
                shown(within.path)
            );
            self.fault(within.place, form.line, message);
        }
        if form.share_threshold && !joined.contains('*') {
            let message = format!(
                "has share_threshold for {}, which has no `*` and so nothing to share; remove it, or \
                 write a pattern",
                shown(&joined)
            );
            self.fault(within.place, form.line, message);
        }
        let path = format!("{}.{joined}", within.path);
        let mut keys = within.keys.to_vec();
        keys.push(&form.key);
        let within = Within {
            path: &path,
            place: within.place,
            keys: &keys,
        };
        let limit = form.limit.as_ref();
        let limited = limit.map(|limit| self.limited(form, limit, &within));
        let mut below = Level::default();
        self.level(&form.nodes, &within, &mut below);
        Node {
            joined: joined.into(),
            key_len: form.key.len(),
            place: Place {
                line: form.line,
                ..within.place.clone()
            },
            limited,
            below,
            value_to_metric: form.value_to_metric,
            shares: form.share_threshold,
            metadata: form.metadata.clone(),
        }
    }

    fn limited(&mut self, node: &NodeForm, form: &LimitForm, within: &Within<'_>) -> Limited {
        let unit = Unit::from_name(&form.unit);
        let wrong = match (form.unlimited, unit) {
            (true, Some(_)) => Some("has a unit and `unlimited`; keep one of them".to_owned()),
            (false, None) => {
                let found = match form.unit.as_str() {
                    "" => "no rate limit unit".to_owned(),
                    unit => format!("the rate limit unit {}", shown(unit)),
                };
                let units = "second, minute, hour, day, week, month or year";
                Some(format!("has {found}; write {units}"))
            }
            _ => None,
        };
        let names = form.replaces.iter().map(String::as_str);
        let wrong_names = names.filter_map(|name| match name {
            "" => Some("replaces something without a name; write `- name: ...`"),
            name if name == form.name => Some("replaces itself; remove its name from `replaces`"),
            _ => None,
        });
        let wrong_names = wrong_names.map(str::to_owned);
        for message in wrong.into_iter().chain(wrong_names) {
            let at = shown(within.path);
            self.fault(within.place, form.line, format!("{at} {message}"));
        }
        let unit = unit.filter(|_| !form.unlimited);
        let quantity = unit.map(|unit| Quantity {
            unit,
            rule: self.rule(node, form.requests_per_unit, unit, within),
        });
        Limited {
            path: within.path.into(),
            quantity,
            requests: form.requests_per_unit,
            name: (!form.name.is_empty()).then(|| form.name.as_str().into()),
            replaces: form
                .replaces
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            shadow: node.shadow_mode,
            quota: node.quota_mode,
            detailed: node.detailed_metric,
        }
    }

    /// The rule that stands for a limit; its position.
    fn rule(&mut self, node: &NodeForm, requests: u32, unit: Unit, within: &Within<'_>) -> u32 {
        let rates = self.rates(requests, unit);
        let keys = within.keys.iter().map(|key| vec![Box::from(*key)]);
        let place = Place {
            line: node.line,
            ..within.place.clone()
        };
        self.add(Rule {
            kind: RuleKind::Descriptor,
            by: Arc::new(By::All(keys.collect())),
            mode: match node.shadow_mode {
                true => Mode::Shadow,
                false => Mode::Enforce,
            },
            terms: Terms {
                named_by: within.keys.len() as u8, // at most MOST_LEVELS
                ..Terms::USUAL
            },
            ..Rule::bare(RuleName::new(within.path), place, rates)
        })
    }

    /// The rule that stands for limits that come with requests of `domain`.
    fn brought(&mut self, domain: &Domain) -> u32 {
        let name = RuleName::new(&format!("{}.override", domain.name));
        self.add(Rule {
            kind: RuleKind::Brought,
            terms: Terms {
                named_by: MOST_LEVELS as u8, // as narrow as any
                ..Terms::USUAL
            },
            ..Rule::bare(name, domain.place.clone(), Arc::default())
        })
    }

    fn add(&mut self, rule: Rule) -> u32 {
        let at = self.rules.len() as u32; // fewer than nodes, of which a file has less than that
        self.rules.push(rule);
        at
    }

    fn rates(&mut self, requests: u32, unit: Unit) -> Arc<Rates> {
        let precision = self.dialect.store.precision;
        let rates = self.rates.entry((requests, unit)).or_insert_with(|| {
            let limit = window(requests, unit, precision);
            Arc::new(Rates::new(vec![limit], vec![written(requests, unit)]))
        });
        Arc::clone(rates)
    }

    fn fault(&mut self, place: &Place, line: u32, message: String) {
        let line = if line > 0 { line } else { place.line };
        self.faults.push(Fault {
            place: Place {
                line,
                ..place.clone()
            },
            rule: None,
            message,
        });
    }
}

/// As a rules file would write it.
pub(crate) fn written(requests: u32, unit: Unit) -> Box<str> {
    format!("{requests}/{}", unit.name()).into()
}

/// The window in which `requests` per `unit` are counted. One of none at all has room for one and must
/// never be asked; one of more than a counter holds has as much as it holds.
pub(crate) fn window(requests: u32, unit: Unit, precision: Precision) -> Limit {
    let spec = Spec::new(Algorithm::FixedWindow, counted_as(requests), unit.length());
    Limit::compile(&spec, precision)
        .expect("a window of whole seconds with a count in range is exact")
}
