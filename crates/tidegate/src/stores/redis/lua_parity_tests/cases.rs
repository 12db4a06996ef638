//! Limits, costs and times for the tests: common ones, and those at the limits of what a double can hold.

use std::sync::Arc;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::units::Nanos;

/// A random number generator whose seed repeats the sequence.
pub(super) struct ParityRng(pub(super) u64);

impl ParityRng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// An algorithm and its kind of window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LimitKind {
    Of(Algorithm),
    Calendar,
}

impl LimitKind {
    pub(super) const ALL: [LimitKind; 7] = [
        LimitKind::Of(Algorithm::TokenBucket),
        LimitKind::Of(Algorithm::LeakyQueue),
        LimitKind::Of(Algorithm::FixedWindow),
        LimitKind::Calendar,
        LimitKind::Of(Algorithm::SlidingWindow),
        LimitKind::Of(Algorithm::SlidingWindowStrict),
        LimitKind::Of(Algorithm::SlidingLog),
    ];
}

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// The start of all tests: far enough ahead that no record expires by the server's own clock.
pub(super) const START: u64 = 2_300_000_000_000_000;

/// The limits to test for a kind. Several differ only a little, as after a reload.
pub(super) fn limits(kind: LimitKind, random: &mut ParityRng) -> Vec<Limit> {
    let mut limits = Vec::new();
    while limits.len() < 12 {
        let spec = match kind {
            LimitKind::Of(algorithm) => spec(algorithm, limits.len(), random),
            LimitKind::Calendar => calendar(random),
        };
        if let Ok(limit) = Limit::compile(&spec, Precision::Double)
            && limit.is_exact_in_doubles()
        {
            limits.push(limit.for_subject(random.next()));
        }
    }
    limits
}

fn spec(algorithm: Algorithm, number: usize, random: &mut ParityRng) -> Spec {
    let max_bucket = |window: u64, per: u64| ((1 << 52) - 1) / (window / 1_000 / per.max(1));
    let (count, window) = match number {
        0 => (10, 60 * SECOND),
        1 => (11, 60 * SECOND),
        2 => (10, 30 * SECOND),
        3 => (7, 7_000_000),
        4 => (1, 30 * DAY),
        5 => (999_983, DAY),
        6 => (3, 3_000),
        7 => (1_500, SECOND),
        8 => (1_000, 60 * SECOND),
        _ => {
            let (count, window) = (random.below(21), 1 + random.below(32));
            let window = 1 + random.below(1 << window);
            (1 + random.below(1 << count), window * 1_000)
        }
    };
    let mut spec = Spec::new(algorithm, count, Nanos::new(window));
    if algorithm.takes_burst() {
        // Case 4 has the largest burst whose products a double can hold.
        let burst = match number {
            4 => max_bucket(window, 1),
            _ => 1 + random.below(2 * count),
        };
        spec = spec.burst(burst.max(1));
    }
    if algorithm == Algorithm::LeakyQueue && random.chance(50) {
        spec.max_delay = Some(Nanos::new(random.below(window)));
    }
    if algorithm == Algorithm::FixedWindow {
        spec.stagger = random.chance(30);
        if random.chance(50) {
            spec.guard = Nanos::new(random.below(window));
        }
    }
    spec
}

fn calendar(random: &mut ParityRng) -> Spec {
    let mut edge = START * 1_000 - 40 * DAY;
    let edges: Vec<Nanos> = (0..400)
        .map(|_| {
            edge += DAY + random.below(3) * 3_600 * SECOND - 3_600 * SECOND;
            Nanos::new(edge)
        })
        .collect();
    let mut spec = Spec::new(Algorithm::FixedWindow, 1 + random.below(50), Nanos::new(DAY));
    spec.window = Window::Edges { edges: Arc::from(edges), nominal: Nanos::new(DAY) };
    if random.chance(50) {
        spec.guard = Nanos::new(random.below(DAY));
    }
    spec
}

/// The time until the next step, in microseconds; negative for a step back.
pub(super) fn step(limit: &Limit, random: &mut ParityRng) -> i64 {
    let window = (limit.full_window().get() / 1_000).clamp(1, 1 << 44);
    let step = match random.below(20) {
        0..=4 => 0,
        5 => 1,
        6..=11 => random.below(window / 8 + 2),
        12..=14 => random.below(window + 1),
        15 => window,
        16 => window + random.below(2 * window),
        // Exactly the tolerated clock step, and a microsecond to either side.
        17 if random.chance(30) => return -4_999_999 - random.below(3) as i64,
        17 => return -(random.below(5_000_001) as i64),
        18 if random.chance(30) => return -(random.below(20_000_000) as i64) - 4_999_990,
        _ => random.below(2_000),
    };
    step as i64
}

/// All of a limit, or the share of it that some priority may use.
pub(super) fn ceiling(limit: &Limit, random: &mut ParityRng) -> u64 {
    match random.below(4) {
        0 | 1 => limit.full_capacity(),
        2 => 1 + random.below(limit.full_capacity()),
        _ => (limit.full_capacity() * 4 / 5).max(1),
    }
}

/// The cost of a request: mostly small, sometimes all or more than the capacity.
pub(super) fn cost(limit: &Limit, random: &mut ParityRng) -> u64 {
    let capacity = limit.capacity();
    match random.below(20) {
        0 => capacity,
        1 => capacity + 1,
        2 if random.chance(10) => u64::MAX - random.below(2),
        2..=5 => 1 + random.below(capacity),
        6..=12 => 1 + random.below(capacity / 4 + 1),
        _ => 1,
    }
}
