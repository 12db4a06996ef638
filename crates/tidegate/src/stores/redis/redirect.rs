//! Redirects of a cluster: a server replies with one to a call for keys that another server serves.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::store::HashSlot;

/// A redirect to another server. The redirecting server has done nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Redirect {
    pub(super) hash_slot: HashSlot,
    /// The other server, as `HOST:PORT`. The host may be empty.
    pub(super) to: String,
    /// How the call must be sent there.
    pub(super) mode: SendMode,
}

/// How a call for a hash slot is sent to a server of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendMode {
    /// The server serves the hash slot.
    Plain,
    /// The server is only importing the hash slot: `ASKING` must precede each call.
    Asking,
}

impl Redirect {
    /// The redirect in an error of the server, if it is one.
    pub(super) fn of(error: &RedisError) -> Option<Redirect> {
        let (to, hash_slot) = error.redirect_node()?;
        Some(Redirect {
            hash_slot: HashSlot(hash_slot),
            to: to.to_owned(),
            mode: match error.kind() {
                ErrorKind::Server(ServerErrorKind::Ask) => SendMode::Asking,
                _ => SendMode::Plain,
            },
        })
    }
}
