//! How the files of a policy are found and read.

use tidegate_core::rules::ParseOptions;
use tidegate_core::store::Capabilities;

use crate::live::FileFilter;

/// How the files of a policy are found and read. Made of a store's [`Capabilities`] or of a [`ParseOptions`]
/// alone, all else is as usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOptions {
    /// What they mean.
    pub dialect: ParseOptions,
    /// Which files of a folder count.
    pub filter: FileFilter,
    /// Whether domains come from elsewhere too. Then the files are kept as they were read, to be read
    /// again beside other domains.
    pub external_domains: bool,
}

impl From<ParseOptions> for PolicyOptions {
    fn from(dialect: ParseOptions) -> Self {
        PolicyOptions {
            dialect,
            filter: FileFilter::Rules,
            external_domains: false,
        }
    }
}

impl From<Capabilities> for PolicyOptions {
    fn from(store: Capabilities) -> Self {
        ParseOptions::from(store).into()
    }
}
