//! How rules are read: for which store, and by which habits of the reference service.

use std::sync::Arc;

use crate::store::Capabilities;

/// How rules are read. Made of a store's [`Capabilities`] alone, all else is as usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseOptions {
    /// What the store can do that will keep the counts.
    pub store: Capabilities,
    /// Whether several files may have descriptors of one domain. The reference service refuses that
    /// unless told otherwise.
    pub merge_domains: bool,
    /// What keeps the counters of descriptors apart from those of others in the same store, if anything.
    pub prefix: Arc<str>,
}

impl From<Capabilities> for ParseOptions {
    fn from(store: Capabilities) -> Self {
        ParseOptions {
            store,
            merge_domains: false,
            prefix: Arc::default(),
        }
    }
}
