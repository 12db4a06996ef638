//! Options for finding and parsing the files of a policy.

use tidegate_core::store::Capabilities;
use tidegate_rules::ParseOptions;

use crate::live::FileFilter;

/// Options for finding and parsing the files of a policy. Converted from a store's [`Capabilities`] or from
/// [`ParseOptions`], all other options have their defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOptions {
    /// How rules are parsed.
    pub dialect: ParseOptions,
    /// Which files of a folder are read.
    pub filter: FileFilter,
    /// Whether domains also come from another source. The policy then retains the text of its files, to parse it
    /// again with other domains.
    pub external_domains: bool,
}

impl From<ParseOptions> for PolicyOptions {
    fn from(dialect: ParseOptions) -> Self {
        PolicyOptions { dialect, filter: FileFilter::Rules, external_domains: false }
    }
}

impl From<Capabilities> for PolicyOptions {
    fn from(store: Capabilities) -> Self {
        ParseOptions::from(store).into()
    }
}
