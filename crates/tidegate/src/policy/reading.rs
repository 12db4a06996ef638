//! How the files of a policy are found and read.

use tidegate_core::rules::Dialect;
use tidegate_core::store::Abilities;

use crate::live::Pick;

/// How the files of a policy are found and read. Made of a store's [`Abilities`] or of a [`Dialect`]
/// alone, all else is as usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// What they mean.
    pub dialect: Dialect,
    /// Which files of a folder count.
    pub pick: Pick,
    /// Whether domains come from elsewhere too. Then the files are kept as they were read, to be read
    /// again beside other domains.
    pub elsewhere: bool,
}

impl From<Dialect> for Reading {
    fn from(dialect: Dialect) -> Self {
        Reading {
            dialect,
            pick: Pick::Rules,
            elsewhere: false,
        }
    }
}

impl From<Abilities> for Reading {
    fn from(store: Abilities) -> Self {
        Dialect::from(store).into()
    }
}
