//! Options of parsing: the store that the rules are for, and options of the reference service.

use std::sync::Arc;

use tidegate_core::store::Capabilities;

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
