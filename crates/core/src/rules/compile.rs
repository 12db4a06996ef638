//! From texts to a `RuleSet`: every file is read, every fault of every file is told.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::SourceFile;
use super::calendar::Calendar;
use super::fault::Faults;
use super::head::{self, Defaults, Shared, TopSlots};
use super::index::Index;
use super::list_reader;
use super::lists::List;
use super::match_reader::MatchReader;
use super::model::Rule;
use super::rates_reader::RatesReader;
use super::replaces;
use super::rule_reader::{Read, RuleReader};
use super::set::RuleSet;
use super::slots::{Report, Slots};
use super::yaml::{Children, Document, Kind, Node};
use crate::store::Abilities;

/// One file, read as YAML, and the fields at its top.
struct File<'d> {
    name: Arc<str>,
    top: TopSlots<'d>,
}

pub(crate) fn compile(files: &[SourceFile<'_>], store: Abilities) -> Result<RuleSet, Faults> {
    let mut faults = Faults::default();
    let names: Vec<Arc<str>> = files.iter().map(|file| file.name.into()).collect();
    let documents = read_documents(files, &names, &mut faults);
    let files = read_tops(&documents, &mut faults);

    let mut shared = Shared::default();
    for file in &files {
        shared.take(&file.top, &mut report(&file.name, &mut faults));
    }
    let set = compile_files(&files, shared, store, &mut faults);
    if faults.is_empty() {
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
    if files.is_empty() {
        report(&"rules".into(), faults).fault(0, "there is no rules file; write one");
    }
    for (file, name) in files.iter().zip(names) {
        match Document::read(file.text) {
            Ok(document) => documents.push((Arc::clone(name), document)),
            Err(unreadable) => report(name, faults).fault(unreadable.line, unreadable.message),
        }
    }
    documents
}

fn read_tops<'d>(documents: &'d [(Arc<str>, Document<'_>)], faults: &mut Faults) -> Vec<File<'d>> {
    let mut files = Vec::with_capacity(documents.len());
    for (name, document) in documents {
        let report = &mut report(name, faults);
        let Some(root) = document.root() else {
            report.fault(0, "is empty; write `version: 1` and `rules:`");
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
    if !files.is_empty() && files.iter().all(|file| file.top.rules.is_none()) {
        let message = "has no rules, so that everything would pass; write `rules:`, or `rules: []` \
                       if that is meant";
        report(&files[0].name, faults).fault(0, message);
    }
    files
}

fn compile_files(
    files: &[File<'_>],
    shared: Shared,
    store: Abilities,
    faults: &mut Faults,
) -> RuleSet {
    let identity = shared
        .identity
        .map(|(identity, _)| identity)
        .unwrap_or_default();
    let tiers = shared.tiers.map(|(tiers, _)| tiers).unwrap_or_default();
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
        store,
        matches: MatchReader::new(identity.ipv6_prefix),
        subjects: FxHashMap::default(),
        units: FxHashMap::default(),
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
    RuleSet {
        index: Index::new(rules.iter().map(|rule| &rule.matching)),
        rules,
        by_name,
        allow,
        block,
        tiers,
        identity,
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
