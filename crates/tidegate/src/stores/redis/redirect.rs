//! Where a server of a cluster sends whoever asks it for the keys of another.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::store::HashSlot;

/// Where a server of a cluster sends us, having done nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Redirect {
    pub(super) hash_slot: HashSlot,
    /// The other server, as `HOST:PORT_HINT` with or without a host.
    pub(super) to: String,
    /// How it wants to be asked.
    pub(super) mode: SendMode,
}

/// How a server of a cluster is asked for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendMode {
    /// As the one that serves it.
    Plain,
    /// As one that is only taking it over: it must be told so each time.
    Asking,
}

impl Redirect {
    /// What an error says of it, if it is one.
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
