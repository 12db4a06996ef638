//! Compiles domain configs into trees and rules: checks, merges and names every limit.
//!
//! Every limit becomes a rule named by the path of its node, so that decisions, metrics and logs have a name for it.
//! Each domain has one more rule for limits that requests bring along.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::tree::{CountedLimit, DescriptorLevel, DescriptorNode, Descriptors, Domain, NodeLimit};
use super::{DescriptorConfig, DomainConfig, LimitConfig, MAX_LEVELS, window_count};
use crate::envoy::Unit;
use crate::language::ParseOptions;
use crate::language::diagnostics::{RuleError, RuleErrors, SourceLocation, quoted};
use crate::language::rule::{By, Mode, Rates, Rule, RuleKind};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::rule_options::RuleOptions;
use tidegate_core::subject::RuleName;

/// Compiles `configs`. Their rules are appended to `rules`.
pub(crate) fn compile(
    configs: &[DomainConfig],
    options: &ParseOptions,
    rules: &mut Vec<Rule>,
    errors: &mut RuleErrors,
) -> Descriptors {
    let mut compiler = DescriptorCompiler { options, rules, errors, rates: FxHashMap::default() };
    let mut descriptors = Descriptors::new(options);
    for config in configs {
        compiler.compile_domain(config, &mut descriptors);
    }
    for domain in &mut descriptors.domains {
        domain.override_rule = compiler.add_override_rule(domain);
    }
    descriptors
}

impl Descriptors {
    /// The domain of `config`, created if it does not exist yet.
    fn domain_for(&mut self, config: &DomainConfig) -> &mut Domain {
        let next = self.domains.len() as u32; // there are fewer files than `u32::MAX`
        let at = *self.by_name.entry(config.domain.as_str().into()).or_insert(next);
        if at == next {
            self.domains.push(Domain {
                name: config.domain.as_str().into(),
                location: config.location.clone(),
                root: DescriptorLevel::default(),
                override_rule: 0,
            });
        }
        &mut self.domains[at as usize]
    }
}

struct DescriptorCompiler<'c> {
    options: &'c ParseOptions,
    rules: &'c mut Vec<Rule>,
    errors: &'c mut RuleErrors,
    /// Equal limits share one entry.
    rates: FxHashMap<(u32, Unit), Arc<Rates>>,
}

/// Position of a node in its tree.
struct NodeContext<'w> {
    /// Path so far: the domain and composite keys, joined by dots.
    path: &'w str,
    location: &'w SourceLocation,
    keys: &'w [&'w str],
}

impl DescriptorCompiler<'_> {
    fn compile_domain(&mut self, config: &DomainConfig, descriptors: &mut Descriptors) {
        if config.domain.is_empty() {
            let message = "has no domain, or an empty one; write `domain: ...`";
            self.error(&config.location, 0, message.to_owned());
        }
        let context = NodeContext { path: &config.domain, location: &config.location, keys: &[] };
        let known = descriptors.domain(&config.domain).is_some();
        let domain = descriptors.domain_for(config);
        if known && !self.options.merge_domains {
            let message = format!(
                "has the domain {}, which is in {} too; keep it in one file, or merge domains (`--merge-domains`)",
                quoted(&config.domain),
                domain.location
            );
            self.error(&config.location, 0, message);
            // Compiled only to find further errors.
            return self.compile_level(&config.descriptors, &context, &mut DescriptorLevel::default());
        }
        self.compile_level(&config.descriptors, &context, &mut domain.root);
    }

    fn compile_level(&mut self, configs: &[DescriptorConfig], context: &NodeContext<'_>, level: &mut DescriptorLevel) {
        if !configs.is_empty() && context.keys.len() >= MAX_LEVELS {
            let message = format!(
                "has descriptors under {} that are more than {MAX_LEVELS} deep; write fewer levels",
                quoted(context.path)
            );
            return self.error(context.location, configs[0].line, message);
        }
        for config in configs {
            let (line, node) = (config.line, self.compile_node(config, context));
            if let Err(known) = level.add(node) {
                let message = format!(
                    "has the composite key {} twice below {}, the first at {}; keep one",
                    quoted(&known.composite_key),
                    quoted(context.path),
                    known.location
                );
                self.error(context.location, line, message);
            }
        }
    }

    fn compile_node(&mut self, config: &DescriptorConfig, context: &NodeContext<'_>) -> DescriptorNode {
        let composite_key = match config.value.as_str() {
            "" => config.key.clone(),
            value => format!("{}_{value}", config.key),
        };
        if config.key.is_empty() {
            let message = format!(
                "has a descriptor below {} without a key, or with an empty one; write `key: ...`",
                quoted(context.path)
            );
            self.error(context.location, config.line, message);
        }
        if config.share_threshold && !composite_key.contains('*') {
            let message = format!(
                "has share_threshold for {}, which has no `*` and so nothing to share; remove it, or write a pattern",
                quoted(&composite_key)
            );
            self.error(context.location, config.line, message);
        }
        let path = format!("{}.{composite_key}", context.path);
        let mut keys = context.keys.to_vec();
        keys.push(&config.key);
        let context = NodeContext { path: &path, location: context.location, keys: &keys };
        let limit = config.limit.as_ref();
        let limit = limit.map(|limit| self.compile_limit(config, limit, &context));
        let mut children = DescriptorLevel::default();
        self.compile_level(&config.descriptors, &context, &mut children);
        DescriptorNode {
            composite_key: composite_key.into(),
            key_len: config.key.len(),
            location: SourceLocation { line: config.line, ..context.location.clone() },
            limit,
            children,
            value_to_metric: config.value_to_metric,
            share_threshold: config.share_threshold,
            metadata: config.metadata.clone(),
        }
    }

    fn compile_limit(&mut self, node: &DescriptorConfig, config: &LimitConfig, context: &NodeContext<'_>) -> NodeLimit {
        let unit = Unit::from_name(&config.unit);
        let problem = match (config.unlimited, unit) {
            (true, Some(_)) => Some("has a unit and `unlimited`; keep one of them".to_owned()),
            (false, None) => {
                let found = match config.unit.as_str() {
                    "" => "no rate limit unit".to_owned(),
                    unit => format!("the rate limit unit {}", quoted(unit)),
                };
                Some(format!("has {found}; write second, minute, hour, day, week, month or year"))
            }
            _ => None,
        };
        let name_problems = config.replaces.iter().filter_map(|name| match name.as_str() {
            "" => Some("replaces something without a name; write `- name: ...`".to_owned()),
            name if name == config.name => Some("replaces itself; remove its name from `replaces`".to_owned()),
            _ => None,
        });
        for message in problem.into_iter().chain(name_problems) {
            self.error(context.location, config.line, format!("{} {message}", quoted(context.path)));
        }
        let unit = unit.filter(|_| !config.unlimited);
        let counted = unit.map(|unit| CountedLimit {
            unit,
            rule: self.add_limit_rule(node, config.requests_per_unit, unit, context),
        });
        NodeLimit {
            path: context.path.into(),
            counted,
            requests_per_unit: config.requests_per_unit,
            name: (!config.name.is_empty()).then(|| config.name.as_str().into()),
            replaces: config.replaces.iter().map(|name| name.as_str().into()).collect(),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            detailed_metric: node.detailed_metric,
        }
    }

    /// Adds the rule of a limit and returns its position.
    fn add_limit_rule(&mut self, node: &DescriptorConfig, requests: u32, unit: Unit, context: &NodeContext<'_>) -> u32 {
        let rates = self.rates(requests, unit);
        let keys = context.keys.iter().map(|key| vec![Box::from(*key)]);
        let location = SourceLocation { line: node.line, ..context.location.clone() };
        self.push_rule(Rule {
            kind: RuleKind::Descriptor,
            by: Arc::new(By::All(keys.collect())),
            mode: if node.shadow_mode { Mode::Shadow } else { Mode::Enforce },
            // At most MAX_LEVELS.
            options: RuleOptions { specificity: context.keys.len() as u8, ..RuleOptions::DEFAULT },
            ..Rule::with_defaults(RuleName::new(context.path), location, rates)
        })
    }

    /// Adds the rule for limits that requests of `domain` bring along, and returns its position.
    fn add_override_rule(&mut self, domain: &Domain) -> u32 {
        let name = RuleName::new(&format!("{}.override", domain.name));
        self.push_rule(Rule {
            kind: RuleKind::RequestOverride,
            // As specific as any.
            options: RuleOptions { specificity: MAX_LEVELS as u8, ..RuleOptions::DEFAULT },
            ..Rule::with_defaults(name, domain.location.clone(), Arc::default())
        })
    }

    fn push_rule(&mut self, rule: Rule) -> u32 {
        let at = self.rules.len() as u32; // fewer than nodes, of which a file has fewer than `u32::MAX`
        self.rules.push(rule);
        at
    }

    fn rates(&mut self, requests: u32, unit: Unit) -> Arc<Rates> {
        let precision = self.options.store.precision;
        let rates = self.rates.entry((requests, unit)).or_insert_with(|| {
            let limit = window(requests, unit, precision);
            Arc::new(Rates::new(vec![limit], vec![rate_text(requests, unit)]))
        });
        Arc::clone(rates)
    }

    fn error(&mut self, location: &SourceLocation, line: u32, message: String) {
        let line = if line > 0 { line } else { location.line };
        self.errors.push(RuleError { location: SourceLocation { line, ..location.clone() }, rule: None, message });
    }
}

/// The rate in the form of a rules file.
pub(crate) fn rate_text(requests: u32, unit: Unit) -> Box<str> {
    format!("{requests}/{}", unit.name()).into()
}

/// The window in which `requests` per `unit` are counted. A limit of 0 requests gets a window with room for one,
/// which must never be charged. A limit above the maximum count of a window gets that maximum.
pub(crate) fn window(requests: u32, unit: Unit, precision: Precision) -> Limit {
    let spec = Spec::new(Algorithm::FixedWindow, window_count(requests), unit.length());
    Limit::compile(&spec, precision).expect("a window of whole seconds with a count in range is exact")
}
