//! How a decision was reached: by a counter, by something that stands for one, or by a list.

crate::named_enum! {
    /// How a decision was reached. Always reported.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Source {
        /// By the authoritative counter.
        Exact = "exact",
        /// The reply of the store was late: the newest known state decided.
        Late = "late",
        /// By leased units.
        Lease = "lease",
        /// By a local count that is synced later.
        Lenient = "lenient",
        /// The deny cache knows the limit is exhausted.
        DenyCache = "deny-cache",
        /// The store did not reply: this node's share decided.
        Fallback = "fallback",
        /// The store is full: subjects share counters.
        Overflow = "overflow",
        /// Denied by the block list.
        BlockList = "block-list",
        /// Allowed by the allow list.
        AllowList = "allow-list",
        /// No rule applies.
        None = "none",
    }
}
