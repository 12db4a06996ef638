//! The state of one connection: protocol version, authentication, and its last limits.

use super::limit_cache::LimitCache;
use super::reply::Protocol;
use super::transaction::Transaction;

/// The state of a connection. Small, because most connections are idle.
pub(super) struct Session {
    /// Unique among the connections of this process.
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    /// The name that the client has set.
    pub(super) name: Option<Box<[u8]>>,
    /// Whether it has sent the password, or there is none.
    pub(super) authenticated: bool,
    /// Wrong passwords so far.
    pub(super) wrong_passwords: u32,
    pub(super) limit_cache: LimitCache,
    /// The commands since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
}

impl Session {
    /// The state of a new connection.
    pub(super) fn new(id: u64, needs_password: bool) -> Self {
        Session {
            id,
            protocol: Protocol::default(),
            name: None,
            authenticated: !needs_password,
            wrong_passwords: 0,
            limit_cache: LimitCache::default(),
            transaction: None,
        }
    }

    /// The memory of the commands that wait for `EXEC`.
    pub(super) fn queued_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, |queue| queue.bytes())
    }
}
