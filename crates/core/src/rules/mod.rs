//! The rules: read, checked, indexed, matched, explained.
//!
//! [`parse`] takes the texts of one file or of a folder's files and gives a [`RuleSet`], or every
//! [`Fault`] at once. Files of the Envoy reference service may lie among them: they have a `domain` at
//! their top. A set never changes: a reload makes another. Nothing here reads a file or a
//! clock, knows a store, or decides a request; the language is described in `docs/rules.md`.

mod calendar;
mod changes;
mod choices;
mod compile;
mod concurrent;
mod condition;
mod counting;
mod descriptors;
mod dialect;
mod durability;
mod explain;
mod fault;
mod free_text;
mod glob;
mod head;
mod headers;
mod hosts;
mod index;
mod lint;
mod list_reader;
mod lists;
mod match_reader;
mod matrix;
mod methods;
mod miscased;
mod model;
mod names;
mod net_text;
mod nets;
mod override_reader;
mod paths;
mod rate;
mod rates_reader;
mod replaces;
mod rule_reader;
mod schema;
mod set;
mod shedding;
mod slots;
mod span;
mod subject;
mod uses;
mod values;
mod yaml;
mod yaml_words;

pub use changes::{FreedDescriptors, LiftedBlocks, LiftedLimits, freed_descriptors, lifted_blocks};
pub use concurrent::Concurrent;
pub use descriptors::{DomainForm, LimitForm, Listing, NodeForm, stat_name};
pub use dialect::Dialect;
pub use explain::{
    Ceiling, Explanation, Handling, Leased, RuleView, Standing, SubjectPart, UnitCost,
};
pub use fault::{Fault, Faults, Place, Warning};
pub use lint::{lint, lint_loaded};
pub use lists::{Entry, Listed};
pub use matrix::Fit;
pub use miscased::{MiscasedAttribute, may_be_miscased};
pub use model::{Alternatives, By, Class, IfMissing, Mode, Purpose, Rates, Rule, RuleKind};
pub use names::{meant_name, nearest_name as within_one_letter};
pub use rate::{PerWindow, Rate, RateError, parse_rate};
pub use schema::schema;
pub use set::{Identity, RuleSet, UnknownUnit};
pub use shedding::{Ceilings, Part, Soft};
pub use span::parse_duration;
pub use yaml::MOST_BYTES;

pub(crate) use descriptors::{Domain, Found, counter_name, stats_key, window, written};
pub(crate) use subject::{Value, subject_text, value_of};

pub use crate::described::Metadata;
pub use crate::request::Priority;
use crate::store::Abilities;

/// A rules file: its name as faults show it, and its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceFile<'a> {
    /// For example `rules.yaml`.
    pub name: &'a str,
    /// What it says.
    pub text: &'a str,
}

/// Reads the rules of one file, or of all files of a folder together, for the memory store.
///
/// # Errors
/// Everything that is wrong with any of them.
pub fn parse(files: &[SourceFile<'_>]) -> Result<RuleSet, Faults> {
    parse_for(files, Abilities::MEMORY)
}

/// The same for a store with other abilities, or in another dialect.
///
/// # Errors
/// As [`parse`]; also a rate that this store cannot compute exactly, and a durability that it cannot
/// give.
pub fn parse_for(files: &[SourceFile<'_>], dialect: impl Into<Dialect>) -> Result<RuleSet, Faults> {
    compile::compile(files, None, dialect.into())
}

/// The same, with domains from another source than files. There need be no file then, and no domain
/// either: a source may have none.
///
/// # Errors
/// As [`parse_for`]; what is wrong with the domains is told of their places.
pub fn parse_with(
    files: &[SourceFile<'_>],
    domains: &[DomainForm],
    dialect: impl Into<Dialect>,
) -> Result<RuleSet, Faults> {
    compile::compile(files, Some(domains), dialect.into())
}
