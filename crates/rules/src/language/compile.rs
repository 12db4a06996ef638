//! Compiles source files into a `RuleSet`. Every file is read, and every error of every file is reported.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::access_lists::{self, AccessList};
use super::calendar::Calendar;
use super::descriptors::{self, DomainConfig};
use super::diagnostics::RuleErrors;
use super::fields::{MappingFields, Reporter};
use super::index::RuleIndex;
use super::names::KnownNames;
use super::replaces;
use super::rule::{Rule, RuleKind};
use super::rule_reader::RuleReader;
use super::rule_set::RuleSet;
use super::top_level::{self, GlobalSettings, TopLevelFields};
use super::yaml::{Document, YamlValue};
use super::{ParseOptions, SourceFile};

/// The name of a file and its top-level fields.
type ParsedFile<'d> = (Arc<str>, TopLevelFields<'d>);

/// Compiles rules files and descriptor files, and the domains of an external source if there is one.
pub(crate) fn compile(
    files: &[SourceFile<'_>],
    external_domains: Option<&[DomainConfig]>,
    options: ParseOptions,
) -> Result<RuleSet, RuleErrors> {
    let mut errors = RuleErrors::default();
    let names: Vec<Arc<str>> = files.iter().map(|file| file.name.into()).collect();
    if files.is_empty() && external_domains.is_none() {
        reporter(&"rules".into(), &mut errors).error(0, "there is no rules file; write one");
    }
    let documents = read_documents(files, &names, &mut errors);
    let (descriptor_files, rules_files): (Vec<_>, Vec<_>) =
        documents.iter().partition(|(_, document)| document.root().is_some_and(descriptors::is_descriptor_file));
    let files = read_top_levels(&rules_files, &mut errors);
    let domains = read_domains(&descriptor_files, external_domains.unwrap_or_default(), &mut errors);
    if domains.is_empty() && external_domains.is_none() {
        reject_missing_rules(&files, &mut errors);
    }

    let mut settings = GlobalSettings::default();
    for (name, top) in &files {
        settings.read_top_level(top, &mut reporter(name, &mut errors));
    }
    let mut set = compile_files(&files, settings, &options, &mut errors);
    set.descriptors = descriptors::compile(&domains, &options, &mut set.rules, &mut errors);
    name_descriptor_rules(&mut set, &mut errors);
    if let (true, Some(name)) = (files.is_empty(), names.first()) {
        set.source = Arc::clone(name);
    }
    if errors.is_empty() {
        set.warnings = errors.take_warnings();
        return Ok(set);
    }
    let order = |file: &str| names.iter().position(|name| **name == *file).unwrap_or(0);
    errors.sort(order);
    Err(errors)
}

fn reporter<'r>(file: &Arc<str>, errors: &'r mut RuleErrors) -> Reporter<'r> {
    Reporter { file: Arc::clone(file), rule: None, errors }
}

/// The name of a file and its parsed document.
type NamedDocument<'a> = (Arc<str>, Document<'a>);

fn read_documents<'a>(files: &[SourceFile<'a>], names: &[Arc<str>], errors: &mut RuleErrors) -> Vec<NamedDocument<'a>> {
    let mut documents = Vec::with_capacity(files.len());
    for (file, name) in files.iter().zip(names) {
        match Document::read(file.text) {
            Ok(document) => documents.push((Arc::clone(name), document)),
            Err(unreadable) => reporter(name, errors).error(unreadable.line, unreadable.message),
        }
    }
    documents
}

fn read_top_levels<'d>(documents: &[&'d NamedDocument<'_>], errors: &mut RuleErrors) -> Vec<ParsedFile<'d>> {
    let mut files = Vec::with_capacity(documents.len());
    for (name, document) in documents {
        let report = &mut reporter(name, errors);
        let Some(root) = document.root() else {
            report.error(
                0,
                "is empty; write `version: 1` and `rules:`, or `domain:` and `descriptors:` for limits of Envoy, or \
                 remove the file",
            );
            continue;
        };
        if let Some(top) = TopLevelFields::read(root, "the file", report) {
            top_level::check_version(&top, root.line(), report);
            files.push((Arc::clone(name), top));
        }
    }
    files
}

/// Reads the files of the reference service, before the domains of the external source.
fn read_domains(
    documents: &[&NamedDocument<'_>],
    external_domains: &[DomainConfig],
    errors: &mut RuleErrors,
) -> Vec<DomainConfig> {
    let mut domains = Vec::with_capacity(documents.len() + external_domains.len());
    for (name, document) in documents {
        let root = document.root();
        domains.extend(root.map(|root| descriptors::read(root, &mut reporter(name, errors))));
    }
    domains.extend_from_slice(external_domains);
    domains
}

fn reject_missing_rules(files: &[ParsedFile<'_>], errors: &mut RuleErrors) {
    if !files.is_empty() && files.iter().all(|(_, top)| top.rules.is_none()) {
        let message = "has no rules, so that everything would pass; write `rules:`, or `rules: []` if that is meant";
        reporter(&files[0].0, errors).error(0, message);
    }
}

fn compile_files(
    files: &[ParsedFile<'_>],
    settings: GlobalSettings,
    options: &ParseOptions,
    errors: &mut RuleErrors,
) -> RuleSet {
    let (identity, identity_location) = match settings.identity {
        Some((identity, location)) => (identity, Some(location)),
        None => Default::default(),
    };
    let tiers = settings.tiers.map(|(tiers, _)| tiers).unwrap_or_default();
    let declared = settings.declared;
    let has_timezone = settings.calendar.is_some();
    let calendar = settings.calendar.map_or_else(Calendar::utc, |(calendar, _)| calendar);
    let mut reader = RuleReader {
        tiers: &tiers,
        calendar: &calendar,
        has_timezone,
        ipv6_prefix: identity.ipv6_prefix,
        store: options.store,
        names: KnownNames::new(&declared),
        parsed_by: FxHashMap::default(),
        compiled_sets: FxHashMap::default(),
        rules: Vec::new(),
        replaces: Vec::new(),
    };
    let (mut allow, mut block) = (AccessList::default(), AccessList::default());
    for (name, top) in files {
        let report = &mut reporter(name, errors);
        read_rules(top, &mut reader, report);
        for (field, node, list) in [("allow", top.allow, &mut allow), ("block", top.block, &mut block)] {
            if let Some(node) = node {
                access_lists::read(field, node, identity.ipv6_prefix, list, report);
            }
        }
    }
    let RuleReader { mut rules, replaces, .. } = reader;
    let by_name = name_rules(&rules, errors);
    replaces::resolve(&mut rules, &replaces, &by_name, errors);
    let used = rules.iter().filter_map(|rule| rule.unit.as_deref());
    let units = used.map(Box::from).chain(declared.units.iter().cloned());
    let has_lists = !allow.entries.is_empty() || !block.entries.is_empty();
    let uses = |name: &str| rules.iter().any(|rule| rule.attribute_names().any(|used| used == name));
    let has_tiers = rules.iter().any(|rule| !rule.tiers.is_empty());
    RuleSet {
        units: units.collect(),
        uses_ip: has_lists || uses("ip"),
        uses_api_key: has_lists || uses("api_key") || has_tiers,
        declared,
        warnings: Vec::new(),
        has_timezone,
        index: RuleIndex::new(rules.iter().map(|rule| &rule.matching)),
        has_soft_limits: rules.iter().any(|rule| rule.soft.is_some()),
        rules,
        by_name,
        descriptors: descriptors::Descriptors::new(options),
        allow,
        block,
        tiers,
        identity,
        identity_location,
        keys_file: settings.keys_file.map(|(name, _)| name),
        source: files.first().map_or_else(|| "rules".into(), |(name, _)| Arc::clone(name)),
    }
}

fn read_rules<'d>(top: &TopLevelFields<'d>, reader: &mut RuleReader<'d, '_>, report: &mut Reporter<'_>) {
    let defaults = top.defaults.map(|node| top_level::read_defaults(node, report)).unwrap_or_default();
    let Some(node) = top.rules else { return };
    let YamlValue::List(nodes) = node.kind() else {
        let message = format!("has {} for `rules`; write a list, or [] if nothing is limited", node.describe());
        return report.error(node.line(), message);
    };
    reader.rules.reserve_exact(nodes.clone().count());
    for node in nodes {
        reader.read(node, defaults, report);
    }
}

fn name_rules(rules: &[Rule], errors: &mut RuleErrors) -> FxHashMap<Box<str>, u32> {
    let mut by_name = FxHashMap::with_capacity_and_hasher(rules.len(), Default::default());
    for (at, rule) in (0_u32..).zip(rules) {
        let name = rule.name.as_str();
        match by_name.entry(Box::from(name)) {
            Entry::Vacant(vacant) => {
                vacant.insert(at);
            }
            Entry::Occupied(first) => {
                let first = &rules[*first.get() as usize].location;
                let message = format!("has the name of the rule at {first}; write another");
                let mut report = reporter(&rule.location.file, errors);
                report.rule = Some(name);
                report.error(rule.location.line, message);
            }
        }
    }
    by_name
}

/// Registers the names of descriptor rules. As in the reference service, two descriptor paths may read the same, and
/// the first one gets the name. A descriptor rule may not have the name of a native rule.
fn name_descriptor_rules(set: &mut RuleSet, errors: &mut RuleErrors) {
    for (at, rule) in (0_u32..).zip(&set.rules) {
        if rule.kind == RuleKind::Match {
            continue;
        }
        match set.by_name.entry(Box::from(rule.name.as_str())) {
            Entry::Vacant(vacant) => {
                vacant.insert(at);
            }
            Entry::Occupied(first) => {
                let first = &set.rules[*first.get() as usize];
                if first.kind != RuleKind::Match {
                    continue;
                }
                let message = format!(
                    "has a descriptor whose limit has the same name as the rule `{}` at {}; rename that rule",
                    first.name, first.location
                );
                reporter(&rule.location.file, errors).error(rule.location.line, message);
            }
        }
    }
}
