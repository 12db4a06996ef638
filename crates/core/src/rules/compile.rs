//! From texts to a `RuleSet`: every file is read, every fault of every file is told.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::SourceFile;
use super::calendar::Calendar;
use super::descriptors::{self, DomainForm};
use super::dialect::Dialect;
use super::fault::Faults;
use super::head::{self, Defaults, Shared, TopSlots};
use super::index::Index;
use super::list_reader;
use super::lists::List;
use super::match_reader::MatchReader;
use super::model::{Rule, RuleKind};
use super::names::{AttributeNames, UnitNames};
use super::rates_reader::RatesReader;
use super::replaces;
use super::rule_reader::{Read, RuleReader};
use super::set::RuleSet;
use super::slots::{Report, Slots};
use super::yaml::{Children, Document, Kind, Node};

/// One file, read as YAML, and the fields at its top.
struct File<'d> {
    name: Arc<str>,
    top: TopSlots<'d>,
}

/// Compiles files of either kind, and domains from elsewhere, if there is such a source.
pub(crate) fn compile(
    files: &[SourceFile<'_>],
    elsewhere: Option<&[DomainForm]>,
    dialect: Dialect,
) -> Result<RuleSet, Faults> {
    let mut faults = Faults::default();
    let names: Vec<Arc<str>> = files.iter().map(|file| file.name.into()).collect();
    if files.is_empty() && elsewhere.is_none() {
        report(&"rules".into(), &mut faults).fault(0, "there is no rules file; write one");
    }
    let documents = read_documents(files, &names, &mut faults);
    let (described, native): (Vec<_>, Vec<_>) = documents
        .iter()
        .partition(|(_, document)| document.root().is_some_and(descriptors::is_of_this_kind));
    let files = read_tops(&native, &mut faults);
    let forms = read_forms(&described, elsewhere.unwrap_or_default(), &mut faults);
    if forms.is_empty() && elsewhere.is_none() {
        refuse_no_rules(&files, &mut faults);
    }

    let mut shared = Shared::default();
    for file in &files {
        shared.take(&file.top, &mut report(&file.name, &mut faults));
    }
    let mut set = compile_files(&files, shared, &dialect, &mut faults);
    set.descriptors = descriptors::compile(&forms, &dialect, &mut set.rules, &mut faults);
    name_described(&mut set, &mut faults);
    if let (true, Some(name)) = (files.is_empty(), names.first()) {
        set.source = Arc::clone(name);
    }
    if faults.is_empty() {
        set.doubts = faults.take_doubts();
        return Ok(set);
    }
    let order = |file: &str| names.iter().position(|name| **name == *file).unwrap_or(0);
    faults.sort(order);
    Err(faults)
}

fn report<'r>(file: &Arc<str>, faults: &'r mut Faults) -> Report<'r> {
    Report {
        file: Arc::clone(file),
        rule: None,
        faults,
    }
}

fn read_documents<'a>(
    files: &[SourceFile<'a>],
    names: &[Arc<str>],
    faults: &mut Faults,
) -> Vec<(Arc<str>, Document<'a>)> {
    let mut documents = Vec::with_capacity(files.len());
    for (file, name) in files.iter().zip(names) {
        match Document::read(file.text) {
            Ok(document) => documents.push((Arc::clone(name), document)),
            Err(unreadable) => report(name, faults).fault(unreadable.line, unreadable.message),
        }
    }
    documents
}

/// A file's name and what it holds.
type Named<'a> = (Arc<str>, Document<'a>);

fn read_tops<'d>(documents: &[&'d Named<'_>], faults: &mut Faults) -> Vec<File<'d>> {
    let mut files = Vec::with_capacity(documents.len());
    for (name, document) in documents {
        let report = &mut report(name, faults);
        let Some(root) = document.root() else {
            report.fault(0, "is empty; write `version: 1` and `rules:`, or `domain:` and `descriptors:` for limits of Envoy, or \
                 remove the file");
            continue;
        };
        if let Some(top) = TopSlots::read(root, "the file", report) {
            head::check_version(&top, root.line(), report);
            files.push(File {
                name: Arc::clone(name),
                top,
            });
        }
    }
    files
}

/// Reads the files of the reference service, before the domains that come from elsewhere.
fn read_forms(
    documents: &[&Named<'_>],
    elsewhere: &[DomainForm],
    faults: &mut Faults,
) -> Vec<DomainForm> {
    let mut forms = Vec::with_capacity(documents.len() + elsewhere.len());
    for (name, document) in documents {
        let root = document.root();
        forms.extend(root.map(|root| descriptors::read(root, &mut report(name, faults))));
    }
    forms.extend_from_slice(elsewhere);
    forms
}

fn refuse_no_rules(files: &[File<'_>], faults: &mut Faults) {
    if !files.is_empty() && files.iter().all(|file| file.top.rules.is_none()) {
        let message = "has no rules, so that everything would pass; write `rules:`, or `rules: []` \
                       if that is meant";
        report(&files[0].name, faults).fault(0, message);
    }
}

fn compile_files(
    files: &[File<'_>],
    shared: Shared,
    dialect: &Dialect,
    faults: &mut Faults,
) -> RuleSet {
    let (identity, identity_place) = match shared.identity {
        Some((identity, place)) => (identity, Some(place)),
        None => Default::default(),
    };
    let tiers = shared.tiers.map(|(tiers, _)| tiers).unwrap_or_default();
    let declared = shared.declared;
    let has_timezone = shared.calendar.is_some();
    let calendar = shared
        .calendar
        .map_or_else(Calendar::utc, |(calendar, _)| calendar);
    let mut reader = RuleReader {
        rates: RatesReader {
            tiers: &tiers,
            calendar: &calendar,
            ipv6_prefix: identity.ipv6_prefix,
            known: FxHashMap::default(),
        },
        has_timezone,
        store: dialect.store,
        matches: MatchReader {
            ipv6_prefix: identity.ipv6_prefix,
            names: AttributeNames::new(&declared),
        },
        subjects: FxHashMap::default(),
        units: UnitNames::new(&declared),
    };
    let mut read = Read::default();
    let (mut allow, mut block) = (List::default(), List::default());
    for file in files {
        let report = &mut report(&file.name, faults);
        read_rules(&file.top, &mut reader, &mut read, report);
        for (field, node, list) in [
            ("allow", file.top.allow, &mut allow),
            ("block", file.top.block, &mut block),
        ] {
            if let Some(node) = node {
                list_reader::read(field, node, identity.ipv6_prefix, list, report);
            }
        }
    }
    let by_name = name_rules(&read.rules, faults);
    let rules = replaces::resolve(read, &by_name, faults);
    let used = rules.iter().filter_map(|rule| rule.unit.as_deref());
    let units = used.map(Box::from).chain(declared.units.iter().cloned());
    RuleSet {
        units: units.collect(),
        declared,
        doubts: Vec::new(),
        has_timezone,
        index: Index::new(rules.iter().map(|rule| &rule.matching)),
        soft: rules.iter().any(|rule| rule.soft.is_some()),
        rules,
        by_name,
        descriptors: descriptors::Descriptors::new(dialect),
        allow,
        block,
        tiers,
        identity,
        identity_place,
        keys_file: shared.keys_file.map(|(name, _)| name),
        source: files
            .first()
            .map_or_else(|| "rules".into(), |file| Arc::clone(&file.name)),
    }
}

fn read_rules<'d>(
    top: &TopSlots<'d>,
    reader: &mut RuleReader<'d, '_>,
    read: &mut Read<'d>,
    report: &mut Report<'_>,
) {
    let defaults = match top.defaults {
        Some(node) => head::defaults(node, report),
        None => Defaults::default(),
    };
    let Some(nodes) = top.rules.and_then(|node| rule_nodes(node, report)) else {
        return;
    };
    read.rules.reserve_exact(nodes.clone().count());
    for node in nodes {
        reader.read(node, defaults, read, report);
    }
}

fn rule_nodes<'d>(node: Node<'d>, report: &mut Report<'_>) -> Option<Children<'d>> {
    match node.kind() {
        Kind::List(rules) => Some(rules),
        kind => {
            let found = match kind {
                Kind::Map(_) => "a mapping",
                Kind::Text(_) => "a text",
                _ => "nothing",
            };
            let message =
                format!("has {found} for `rules`; write a list, or [] if nothing is limited");
            report.fault(node.line(), message);
            None
        }
    }
}

fn name_rules(rules: &[Rule], faults: &mut Faults) -> FxHashMap<Box<str>, u32> {
    let mut by_name = FxHashMap::with_capacity_and_hasher(rules.len(), Default::default());
    for (at, rule) in (0_u32..).zip(rules) {
        let name = rule.name.as_str();
        match by_name.entry(Box::from(name)) {
            Entry::Vacant(place) => {
                place.insert(at);
            }
            Entry::Occupied(first) => {
                let first = &rules[*first.get() as usize].place;
                let message = format!("has the name of the rule at {first}; write another");
                let mut report = report(&rule.place.file, faults);
                report.rule = Some(name);
                report.fault(rule.place.line, message);
            }
        }
    }
    by_name
}

/// Names the rules of descriptors. As in the reference service two paths may read the same, and the
/// first then has the name; but nothing may have that of a rule of ours.
fn name_described(set: &mut RuleSet, faults: &mut Faults) {
    for (at, rule) in (0_u32..).zip(&set.rules) {
        if rule.kind == RuleKind::Match {
            continue;
        }
        match set.by_name.entry(Box::from(rule.name.as_str())) {
            Entry::Vacant(place) => {
                place.insert(at);
            }
            Entry::Occupied(first) => {
                let first = &set.rules[*first.get() as usize];
                if first.kind != RuleKind::Match {
                    continue;
                }
                let message = format!(
                    "has a descriptor whose limit is called as the rule `{}` at {}; rename that rule",
                    first.name, first.place
                );
                report(&rule.place.file, faults).fault(rule.place.line, message);
            }
        }
    }
}
