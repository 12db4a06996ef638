//! The large connections of one listener: HTTP/2 connections that have had many streams at the same time.
//!
//! What the HTTP/2 library has allocated for the streams of a connection stays allocated until the
//! connection ends: some 200 KiB for 120 streams. So a client that finishes all its streams and then keeps
//! its connections open makes the process hold memory that nobody uses.
//!
//! Invariant: a listener has at most [`LargeConnections::MAX`] large connections, and
//! [`LargeConnections::MAX_LEAVING`] that are leaving. One more large connection makes the one leave that
//! has been silent longest; one with requests in flight leaves only if all have some. A connection that
//! leaves serves what is in flight and then ends. One more that leaves cuts off the one that has been silent
//! longest. So a client that does not leave gains nothing.
//!
//! Connections that stay small take no lock here.

use std::sync::Arc;

use super::silent_connections::{SilentConnections, SilentPlace};

/// The large connections of one listener, and those that are leaving.
#[derive(Default)]
pub(crate) struct LargeConnections {
    open: Arc<SilentConnections>,
    leaving: Arc<SilentConnections>,
}

impl LargeConnections {
    /// A connection with more streams than this at the same time is large.
    pub(crate) const MIN_STREAMS: usize = 32;

    /// So many connections with more than [`MIN_STREAMS`](Self::MIN_STREAMS) waiting streams are as many
    /// streams as may wait on a listener.
    pub(crate) const MAX: usize = 256;

    /// Those that may be leaving.
    pub(crate) const MAX_LEAVING: usize = 64;

    /// A place for a connection that has become large.
    pub(super) fn enter(&self) -> SilentPlace {
        SilentConnections::enter_within(&self.open, Self::MAX)
    }

    /// A place for one that has to leave.
    pub(super) fn leave(&self) -> SilentPlace {
        SilentConnections::enter_within(&self.leaving, Self::MAX_LEAVING)
    }
}
