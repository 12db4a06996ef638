//! Where fixed windows begin and end: aligned to the epoch, shifted by a phase, or on calendar edges.
//!
//! Calendar edges are handed in as a list (made from a time zone when rules are compiled), so that
//! no decision needs a time zone. Past the last edge the last window never ends: it refuses, it does
//! not reopen.

use std::sync::Arc;

/// The grid of one fixed window, in ticks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Frame {
    /// Equal windows: one begins at every multiple of `width`, less `phase`.
    Aligned { width: u64, phase: u64 },
    /// Windows between neighbouring edges, in ascending order.
    Edges(Arc<[u64]>),
}

impl Frame {
    /// First tick of the window that holds `tick`, and first tick after it.
    pub(crate) fn bounds(&self, tick: u64) -> (u64, u64) {
        match self {
            Frame::Aligned { width, phase } => {
                let into = tick.wrapping_add(*phase) % width;
                let start = tick.saturating_sub(into);
                (start, tick.saturating_add(width - into))
            }
            Frame::Edges(edges) => {
                let next = edges.partition_point(|edge| *edge <= tick);
                let start = next.checked_sub(1).map_or(0, |i| edges[i]);
                (start, edges.get(next).copied().unwrap_or(u64::MAX))
            }
        }
    }

    /// The window that ends at `end`: its first tick.
    pub(crate) fn start_of(&self, end: u64) -> u64 {
        self.bounds(end.saturating_sub(1)).0
    }

    /// The end of the window that begins at `start`.
    pub(crate) fn end_of(&self, start: u64) -> u64 {
        self.bounds(start).1
    }

    /// The same grid moved by a hash of the subject, so that not all subjects reset together.
    /// Calendar windows stay where the calendar has them.
    pub(crate) fn staggered(&self, seed: u64) -> Frame {
        match self {
            Frame::Aligned { width, .. } => Frame::Aligned {
                width: *width,
                phase: seed % width,
            },
            Frame::Edges(_) => self.clone(),
        }
    }
}
