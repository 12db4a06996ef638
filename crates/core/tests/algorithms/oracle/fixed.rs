//! Fixed window: at most `L` in each window of a grid. With a guard, units admitted in the last `g` of a window count
//! in the next one too.

use tidegate_core::algorithms::Window;
use tidegate_core::units::{Nanos, Tick};

use super::{LimitOracle, ticks, units};
use crate::case::LimitCase;

/// After the last calendar edge a window never ends.
const NEVER: i128 = u64::MAX as i128;

pub(super) struct FixedWindowOracle {
    limit: i128,
    grid: OracleGrid,
    guard: i128,
    tick: Tick,
    list: Vec<GuardedAdmission>,
}

enum OracleGrid {
    Aligned { width: i128, phase: i128 },
    Edges(Vec<i128>),
}

/// An admission: the end of its window, and whether it was in the guard.
struct GuardedAdmission {
    end: i128,
    guarded: bool,
    units: i128,
}

impl FixedWindowOracle {
    pub(super) fn new(case: &LimitCase) -> Self {
        let tick = case.limit.tick();
        let aligned = |width: Nanos, phase: Nanos| {
            let width = ticks(tick, width);
            let phase = match case.seed {
                Some(seed) => i128::from(seed) % width,
                None => ticks(tick, phase),
            };
            OracleGrid::Aligned { width, phase }
        };
        let grid = match &case.spec.window {
            Window::Span(width) => aligned(*width, Nanos::ZERO),
            Window::Shifted { width, phase } => aligned(*width, *phase),
            Window::Edges { edges, .. } => OracleGrid::Edges(edges.iter().map(|edge| ticks(tick, *edge)).collect()),
        };
        let per_tick = i128::from(tick.nanos());
        FixedWindowOracle {
            limit: case.spec.count.into(),
            grid,
            guard: (i128::from(case.spec.guard.get()) + per_tick - 1) / per_tick,
            tick,
            list: Vec::new(),
        }
    }

    /// Start and end of the window that contains `at`.
    fn window(&self, at: i128) -> (i128, i128) {
        match &self.grid {
            OracleGrid::Aligned { width, phase } => {
                let start = (at + phase).div_euclid(*width) * width - phase;
                (start, start + width)
            }
            OracleGrid::Edges(edges) => {
                let before = edges.iter().copied().filter(|edge| *edge <= at);
                let after = edges.iter().copied().filter(|edge| *edge > at);
                (before.max().unwrap_or(0), after.min().unwrap_or(NEVER))
            }
        }
    }

    fn admitted_in(&self, end: i128) -> i128 {
        let counts = |admission: &&GuardedAdmission| {
            admission.end == end || admission.guarded && self.window(admission.end).1 == end
        };
        self.list.iter().filter(counts).map(|c| c.units).sum()
    }

    fn newest_window_end(&self) -> Option<i128> {
        self.list.iter().map(|charged| charged.end).max()
    }

    /// Time is at least the start of the newest admission's window, or of its guard if that has admissions.
    fn effective(&self, now: Nanos) -> i128 {
        let now = ticks(self.tick, now);
        let Some(end) = self.newest_window_end() else {
            return now;
        };
        let in_guard = |c: &GuardedAdmission| c.end == end && c.guarded && c.units > 0;
        let in_guard = self.list.iter().any(in_guard);
        let began = self.window(end - 1).0;
        let reached = if in_guard { began.max(end - self.guard) } else { began };
        now.max(reached)
    }
}

impl LimitOracle for FixedWindowOracle {
    fn room(&self, now: Nanos) -> u64 {
        let (_, end) = self.window(self.effective(now));
        units(self.limit - self.admitted_in(end))
    }

    fn record(&mut self, now: Nanos, units: u64) {
        let at = self.effective(now);
        let (_, end) = self.window(at);
        self.list.push(GuardedAdmission { end, guarded: end - at <= self.guard, units: units.into() });
    }

    fn ahead(&self, now: Nanos) -> i128 {
        self.effective(now) - ticks(self.tick, now)
    }

    /// The admissions of the newest window move to `now`, and are guarded there if `now` is; but units carried over
    /// from the window before were never this window's to guard.
    fn set_back(&mut self, now: Nanos) {
        let Some(newest) = self.newest_window_end() else {
            return;
        };
        let at = ticks(self.tick, now);
        let (_, end) = self.window(at);
        let held = self.admitted_in(newest);
        let guarded = self.list.iter().filter(|c| c.end == newest && c.guarded);
        let guarded: i128 = guarded.map(|c| c.units).sum();
        let charged = |units, guarded| GuardedAdmission { end, guarded, units };
        self.list = vec![charged(held - guarded, false), charged(guarded, end - at <= self.guard)];
    }
}
