//! The large connections of one listener: HTTP/2 connections that make the HTTP/2 library hold memory until they end.
//!
//! There are two kinds. Memory that the library has allocated for the streams of a connection stays allocated: some 200
//! KiB for 120 streams. And it keeps whole input blocks for some entries of the header table, up to a hundred of 8 KiB
//! or more (see `header_blocks`). So a client that causes either and then keeps its connections open makes the process
//! hold unused memory.
//!
//! Invariant: a listener has at most [`LargeKind::max`] connections of each kind, and [`LargeConnections::MAX_LEAVING`]
//! that are leaving. When there is one more of a kind, the connection of that kind that has been silent longest has to
//! leave. A connection with requests in flight has to leave only if all of its kind have some. A leaving connection
//! serves the requests in flight and then ends. When one more has to leave, the leaving connection that has been silent
//! longest is closed. So a client that does not leave gains nothing.
//!
//! Connections that stay small take no lock here.

use std::sync::Arc;

use super::silent_connections::{SilentConnections, SilentGuard};

/// The large connections of one listener, and those that are leaving.
#[derive(Default)]
pub(crate) struct LargeConnections {
    with_streams: Arc<SilentConnections>,
    with_blocks: Arc<SilentConnections>,
    leaving: Arc<SilentConnections>,
}

/// Why a connection is large. A connection that is large in both ways counts as one with blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LargeKind {
    /// It has had more than [`MIN_STREAMS`](Self::MIN_STREAMS) streams at the same time.
    Streams,
    /// Its header table may hold more than [`MIN_BLOCKS`](Self::MIN_BLOCKS) blocks.
    Blocks,
}

impl LargeKind {
    /// A connection with more streams than this at the same time is large.
    pub(crate) const MIN_STREAMS: usize = 32;

    /// This many connections with more than [`MIN_STREAMS`](Self::MIN_STREAMS) waiting streams have as many streams as
    /// may wait on a listener.
    pub(crate) const MAX_WITH_STREAMS: usize = 256;

    /// A connection whose header table may hold more blocks than this is large. A client that calls one
    /// service needs one for each method, and one for the host.
    pub(crate) const MIN_BLOCKS: u32 = 4;

    /// Few clients index paths that differ from request to request.
    pub(crate) const MAX_WITH_BLOCKS: usize = 32;

    /// Maximum connections of this kind on a listener.
    fn max(self) -> usize {
        match self {
            LargeKind::Streams => Self::MAX_WITH_STREAMS,
            LargeKind::Blocks => Self::MAX_WITH_BLOCKS,
        }
    }
}

impl LargeConnections {
    /// Maximum leaving connections.
    pub(crate) const MAX_LEAVING: usize = 64;

    /// Registers a connection that has become large.
    pub(super) fn register(&self, kind: LargeKind) -> SilentGuard {
        let table = match kind {
            LargeKind::Streams => &self.with_streams,
            LargeKind::Blocks => &self.with_blocks,
        };
        SilentConnections::register_evicting(table, kind.max())
    }

    /// Registers a connection that has to leave.
    pub(super) fn register_leaving(&self) -> SilentGuard {
        SilentConnections::register_evicting(&self.leaving, Self::MAX_LEAVING)
    }
}
