//! The rules language: parsing, checking, indexing, matching and explaining.
//!
//! [`parse`] takes the texts of one file or of all files of a folder and returns a [`RuleSet`], or every
//! [`RuleError`] at once. Files of the Envoy reference service may be among them: they have a `domain` at the top.
//! Invariant: a set never changes; a reload makes another. Nothing here reads a file or a clock, knows a store, or
//! decides a request. `docs/rules.md` describes the language.

mod access_lists;
mod algorithm_profile;
mod calendar;
mod compile;
mod condition;
mod descriptors;
mod diagnostics;
mod diff;
mod explain;
mod fields;
mod glob;
mod headers;
mod index;
mod lint;
mod load_shedding;
mod match_reader;
mod names;
mod net_map;
mod override_reader;
mod rates;
mod replaces;
mod rule;
mod rule_options;
mod rule_reader;
mod rule_set;
mod schema;
mod subject;
mod top_level;
mod values;
mod yaml;

pub use access_lists::{ListDecision, ListEntry};
pub use algorithm_profile::AlgorithmProfile;
pub use descriptors::{ConfigDump, DescriptorConfig, DomainConfig, LimitConfig, stat_name};
pub use diagnostics::{RuleError, RuleErrors, SourceLocation, Warning};
pub use diff::{LiftedBlocks, LiftedDescriptorLimits, LiftedLimits, lifted_blocks, lifted_descriptor_limits};
pub use explain::{
    Applicability, EffectiveCeiling, EffectiveOptions, Explanation, LeasedRate, RuleView, SubjectPart, UnitCost,
};
pub use lint::{lint, lint_with_keys};
pub use load_shedding::{Permille, PriorityCeilings, SoftLimit};
pub use names::{find_within_one_edit, suggest_name};
pub use rule::{Alternatives, By, IfMissing, Mode, Purpose, RateClass, Rates, Rule, RuleKind};
pub use rule_options::Concurrency;
pub use rule_set::{AttributeCaseError, Identity, RuleSet, UnknownUnitError, may_have_case_mismatch};
pub use schema::schema;
pub use tidegate_core::rate::{PerWindow, Rate, RateError, parse_duration, parse_rate};
pub use yaml::MAX_FILE_BYTES;

pub(crate) use descriptors::{DescriptorLookup, Domain, counter_name, rate_text, stats_key, window};
pub(crate) use subject::{SubjectValue, subject_text, subject_value};

pub use crate::envoy::Metadata;
pub use crate::request::Priority;
use std::sync::Arc;
use tidegate_core::rule_options::Capabilities;

/// A rules file: its name as errors show it, and its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceFile<'a> {
    /// For example `rules.yaml`.
    pub name: &'a str,
    /// Content of the file.
    pub text: &'a str,
}

/// Options of parsing. If converted from a store's [`Capabilities`], all others have their defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseOptions {
    /// Capabilities of the store that holds the counts.
    pub store: Capabilities,
    /// Whether several files may have descriptors of one domain. The reference service rejects that by default.
    pub merge_domains: bool,
    /// Prefix that keeps the counters of descriptors apart from others in the same store; empty for none.
    pub prefix: Arc<str>,
}

impl From<Capabilities> for ParseOptions {
    fn from(store: Capabilities) -> Self {
        ParseOptions { store, merge_domains: false, prefix: Arc::default() }
    }
}

/// Parses the rules of one file, or of all files of a folder together, for the memory store.
///
/// # Errors
/// All errors of all files.
pub fn parse(files: &[SourceFile<'_>]) -> Result<RuleSet, RuleErrors> {
    parse_with_options(files, Capabilities::MEMORY)
}

/// As [`parse`], for a store with other capabilities, or with other options.
///
/// # Errors
/// As [`parse`]. A rate that the store cannot compute exactly is an error, too, and so is a durability that it cannot
/// provide.
pub fn parse_with_options(files: &[SourceFile<'_>], options: impl Into<ParseOptions>) -> Result<RuleSet, RuleErrors> {
    compile::compile(files, None, options.into())
}

/// As [`parse_with_options`], with domains from a source other than files. There need be no file then, and the source
/// may have no domain.
///
/// # Errors
/// As [`parse_with_options`]. An error in a domain has the location of that domain.
pub fn parse_with_domains(
    files: &[SourceFile<'_>],
    domains: &[DomainConfig],
    options: impl Into<ParseOptions>,
) -> Result<RuleSet, RuleErrors> {
    compile::compile(files, Some(domains), options.into())
}
