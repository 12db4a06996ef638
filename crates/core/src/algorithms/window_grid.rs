//! The boundaries of fixed windows: aligned to the Unix epoch, shifted by a phase, or on calendar edges.
//!
//! Calendar edges come as a list (made from a time zone when rules are compiled), so that no decision needs a time
//! zone. After the last edge the last window never ends: it denies, it does not reopen.

use std::sync::Arc;

use crate::units::{Nanos, Tick};

/// The grid of one fixed window, in ticks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowGrid {
    /// Equal windows: one begins at every multiple of `width`, less `phase`.
    Aligned { width: u64, phase: u64 },
    /// Windows between neighbouring edges, in ascending order. All limits of one calendar share the list, so it stays
    /// in nanoseconds.
    Edges { edges: Arc<[Nanos]>, tick: Tick },
}

impl WindowGrid {
    /// First tick of the window that contains `tick`, and first tick after it.
    pub(crate) fn bounds(&self, tick: u64) -> (u64, u64) {
        match self {
            WindowGrid::Aligned { width, phase } => {
                let into = tick.wrapping_add(*phase) % width;
                let start = tick.saturating_sub(into);
                (start, tick.saturating_add(width - into))
            }
            WindowGrid::Edges { edges, tick: grain } => {
                let next = edges.partition_point(|edge| grain.floor(*edge) <= tick);
                let start = next.checked_sub(1).map_or(0, |i| grain.floor(edges[i]));
                let end = edges.get(next).map_or(u64::MAX, |edge| grain.floor(*edge));
                (start, end)
            }
        }
    }

    /// The first tick of the window that ends at `end`.
    pub(crate) fn start_of(&self, end: u64) -> u64 {
        self.bounds(end.saturating_sub(1)).0
    }

    /// The end of the window that begins at `start`.
    pub(crate) fn end_of(&self, start: u64) -> u64 {
        self.bounds(start).1
    }

    /// The same grid shifted by a hash of the subject, so that not all subjects reset together. Calendar windows are
    /// not shifted.
    pub(crate) fn staggered(&self, seed: u64) -> WindowGrid {
        match self {
            WindowGrid::Aligned { width, .. } => WindowGrid::Aligned { width: *width, phase: seed % width },
            WindowGrid::Edges { .. } => self.clone(),
        }
    }
}
