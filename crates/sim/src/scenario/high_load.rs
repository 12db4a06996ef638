//! Runs with enough traffic for leases: large limits, load from half to three times the limit, nodes with
//! very different shares of it, and long rests.
//!
//! Every run has three load periods. The fault hits one of them, so the others show a cluster before any fault
//! and one after recovery.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::Counting;
use tidegate_core::units::Nanos;

use super::{ArrivalPattern, LAST_REPLIES, LOAD_BEGINS, LoadPeriod, Routing, Scenario, SimFault, SimSubject};
use crate::rng::Rng;

/// A family of runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScenarioKind {
    /// Small limits; every request charges the store.
    Single,
    /// The same with a store of three shards.
    Sharded,
    /// Leases.
    Leased,
    /// Lenient counting: local counts that are synced later.
    Lenient,
    /// Leases of nodes far from the store.
    Region,
    /// Reservations that are settled, or not.
    Reservations,
    /// Permits of concurrency limits.
    Permits,
    /// A healthy store whose replies are late.
    LateReplies,
    /// Several outages in one window, and restarts of nodes.
    Restarts,
}

impl ScenarioKind {
    /// All kinds.
    pub const ALL: [ScenarioKind; 9] = [
        ScenarioKind::Single,
        ScenarioKind::Sharded,
        ScenarioKind::Leased,
        ScenarioKind::Lenient,
        ScenarioKind::Region,
        ScenarioKind::Reservations,
        ScenarioKind::Permits,
        ScenarioKind::LateReplies,
        ScenarioKind::Restarts,
    ];

    /// The name on the command line of `replay` and `soak`.
    pub const fn name(self) -> &'static str {
        match self {
            ScenarioKind::Single => "whole",
            ScenarioKind::Sharded => "shards",
            ScenarioKind::Leased => "leased",
            ScenarioKind::Lenient => "lenient",
            ScenarioKind::Region => "region",
            ScenarioKind::Reservations => "reservations",
            ScenarioKind::Permits => "permits",
            ScenarioKind::LateReplies => "late",
            ScenarioKind::Restarts => "restarts",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<ScenarioKind> {
        ScenarioKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The run of this kind for `seed`.
    pub fn scenario(self, seed: u64) -> Scenario {
        match self {
            ScenarioKind::Single => Scenario::from_seed(seed),
            ScenarioKind::Sharded => Scenario::sharded(seed),
            ScenarioKind::Leased => Scenario::leased(seed),
            ScenarioKind::Lenient => Scenario::lenient(seed),
            ScenarioKind::Region => Scenario::region(seed),
            ScenarioKind::Reservations => Scenario::reservations(seed),
            ScenarioKind::Permits => Scenario::permits(seed),
            ScenarioKind::LateReplies => Scenario::late_replies(seed),
            ScenarioKind::Restarts => Scenario::restarts(seed),
        }
    }
}

/// Algorithms that support leases.
const LEASABLE: [Algorithm; 5] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

pub(super) fn any_fault(seed: u64) -> SimFault {
    SimFault::WITH_DRAIN[(seed % SimFault::WITH_DRAIN.len() as u64) as usize]
}

impl Scenario {
    /// The run of `seed` with leases.
    pub fn leased(seed: u64) -> Self {
        Scenario::leased_with(seed, any_fault(seed))
    }

    /// The same with the given fault.
    pub fn leased_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 5);
        let mut scenario = high_load(seed, fault, &LEASABLE, &mut rng);
        let lasts = Nanos::from_millis(rng.pick(&[20, 50, 100, 200, 500, 1_000, 2_000]));
        scenario.use_leases(lasts, &mut rng);
        scenario
    }

    /// The run of `seed` with lenient counting.
    pub fn lenient(seed: u64) -> Self {
        Scenario::lenient_with(seed, any_fault(seed))
    }

    /// The same with the given fault.
    pub fn lenient_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 7);
        let mut scenario = high_load(seed, fault, &LEASABLE, &mut rng);
        scenario.counting = Counting::Lenient;
        scenario.ceiling_counting = rng.pick(&[Counting::Lenient, Counting::Exact]);
        scenario
    }

    /// The worst case of lenient counting: all nodes have just synced, then all receive more than the limit
    /// at the same instant. There is no fault.
    pub fn stampede(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 13);
        let mut scenario = Scenario::lenient_with(seed, SimFault::None);
        let (nodes, count) = (rng.between(2, 8), rng.between(40, 150));
        scenario.nodes = nodes as usize;
        scenario.ceiling = None;
        let window = Nanos::from_millis(rng.pick(&[1_000, 2_000]));
        scenario.spec = Spec::new(scenario.spec.algorithm, count, window);
        // A sync reply is valid for 50 ms: every node receives requests more often than that.
        let (mean_interval, at_once) = (Nanos::from_millis(60 / nodes), 3 * nodes * count);
        scenario.subjects = vec![SimSubject {
            mean_interval,
            routing: Routing::Spread,
            arrivals: ArrivalPattern::Surges(at_once, Nanos::from_millis(rng.between(650, 950))),
        }];
        scenario
    }

    /// The run of `seed` in which some nodes are far from the store and draw leases for seconds.
    pub fn region(seed: u64) -> Self {
        Scenario::region_with(seed, any_fault(seed))
    }

    /// The same with the given fault.
    pub fn region_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 11);
        let mut scenario = high_load(seed, fault, &LEASABLE, &mut rng);
        let lasts = Nanos::from_millis(rng.between(1_000, 5_000));
        // A burst of half a second is useless to a node that learns of it a third of a second later.
        let window = Nanos::from_secs(rng.pick(&[5, 10]));
        let rate = scenario.spec.count * 1_000 / scenario.spec.window.length().millis_up();
        // With more, a node exceeds its maximum of calls in flight before its first reply from the store.
        let max = rate.min(1_700);
        for subject in &mut scenario.subjects {
            subject.mean_interval = Nanos::new(subject.mean_interval.get() * rate / max);
        }
        let rate = max;
        scenario.spec = Spec::new(scenario.spec.algorithm, rate * window.get() / 1_000_000_000, window);
        scenario.ceiling = None;
        scenario.use_leases(lasts, &mut rng);
        let one_way = rng.between(40, 150);
        let near = rng.below(scenario.nodes as u64) as usize;
        let far = |node| Nanos::from_millis(if node < near { 0 } else { one_way });
        scenario.extra_latency = (0..scenario.nodes).map(far).collect();
        scenario.budget = Nanos::from_millis(rng.between(2 * one_way + 60, 500));
        scenario.delayed_by(Nanos::from_secs(3)) // far nodes need longer to discover each other
    }

    /// Counts both limits with leases, or one of them.
    fn use_leases(&mut self, lasts: Nanos, rng: &mut Rng) {
        let modes = [
            (Counting::Leased, Counting::Leased),
            (Counting::Exact, Counting::Leased),
            (Counting::Leased, Counting::Exact),
        ];
        (self.counting, self.ceiling_counting) = match self.ceiling {
            Some(_) => rng.pick(&modes),
            None => (Counting::Leased, Counting::Exact),
        };
        let of = |counting| (counting == Counting::Leased).then_some(lasts);
        self.spec.lease_ttl = of(self.counting);
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.lease_ttl = of(self.ceiling_counting);
        }
    }

    /// The same run, `span` later.
    fn delayed_by(mut self, span: Nanos) -> Self {
        if self.fault != SimFault::LateStore {
            self.fault_begins = self.fault_begins.plus(span);
        }
        self.fault_ends = self.fault_ends.plus(span);
        self.ends = self.ends.plus(span);
        for (from, to) in &mut self.load_periods {
            (*from, *to) = (from.plus(span), to.plus(span));
        }
        self
    }

    /// The same run with longer rests between the load periods, until `ends`.
    #[must_use]
    pub fn stretched(mut self, ends: Nanos) -> Self {
        let more = ends.since(self.ends).get();
        let gaps = self.load_periods.len().saturating_sub(1) as u64;
        let later = |period: usize, at: Nanos| match gaps {
            0 => at,
            gaps => at.plus(Nanos::new(more * period as u64 / gaps)),
        };
        let hit_period = self.load_periods.iter().position(|(_, to)| self.fault_begins < *to);
        let hit_period = hit_period.unwrap_or(0);
        self.fault_begins = later(hit_period, self.fault_begins);
        self.fault_ends = later(hit_period, self.fault_ends);
        for (i, (from, to)) in self.load_periods.iter_mut().enumerate() {
            (*from, *to) = (later(i, *from), later(i, *to));
        }
        self.ends = self.ends.max(ends);
        self
    }
}

/// A run under high load, with exact counting.
fn high_load(seed: u64, fault: SimFault, algorithms: &[Algorithm], rng: &mut Rng) -> Scenario {
    let mut scenario = Scenario::with_fault(seed, fault);
    scenario.nodes = rng.between(2, 8) as usize;
    // At least 20 ms: the replication task wakes at this interval for the whole of a long run.
    scenario.replica_lag = Nanos::from_millis(rng.between(20, 400));
    scenario.spec = limit(rng.pick(algorithms), rng);
    let window = scenario.spec.window.length();
    let subjects = rng.between(1, 2);
    let load = rng.pick(&[5, 9, 12, 30]);
    let mean_interval = Nanos::new(window.get() * 10 / scenario.spec.count / load);
    scenario.subjects = (0..subjects).map(|_| subject(&scenario.spec, mean_interval, rng)).collect();
    let ceiling = Spec::new(rng.pick(algorithms), scenario.spec.count * subjects * 7 / 10, window);
    scenario.ceiling = rng.chance(350).then_some(ceiling);
    schedule(&mut scenario, rng);
    scenario
}

/// From 200 to 5,000 per second.
fn limit(algorithm: Algorithm, rng: &mut Rng) -> Spec {
    let rate = rng.pick(&[200, 350, 600, 1_000, 1_700, 3_000, 5_000]);
    let millis = rng.pick(&[500, 1_000, 2_000]);
    let count = rate * millis / 1_000;
    let mut spec = Spec::new(algorithm, count, Nanos::from_millis(millis));
    if algorithm.takes_burst() && rng.chance(500) {
        spec.burst = Some(rng.between(count / 4, 2 * count));
    }
    if algorithm == Algorithm::FixedWindow && rng.chance(250) {
        spec.guard = Nanos::from_millis(20);
    }
    spec
}

fn subject(spec: &Spec, mean_interval: Nanos, rng: &mut Rng) -> SimSubject {
    let span = |least, max, rng: &mut Rng| Nanos::from_millis(rng.between(least, max));
    SimSubject {
        mean_interval,
        routing: rng.pick(&[Routing::Spread, Routing::Skewed, Routing::Skewed, Routing::Sticky, Routing::Rotating]),
        arrivals: match rng.below(6) {
            0 | 1 => ArrivalPattern::OnOff(span(20, 300, rng), span(20, 600, rng)),
            2 => {
                // At most what a node may have in flight; above that it treats its store as unavailable.
                let at_once = rng.between(spec.count / 2, spec.count).min(1_500);
                ArrivalPattern::Surges(at_once, span(400, 1_500, rng))
            }
            _ => ArrivalPattern::Steady,
        },
    }
}

/// Three load periods with a second between them, and the fault in the second; for a late store, in the first.
fn schedule(scenario: &mut Scenario, rng: &mut Rng) {
    let window = scenario.spec.window.length();
    let span = |least, max, rng: &mut Rng| Nanos::from_millis(rng.between(least, max));
    let lasts = match scenario.fault_ends.since(scenario.fault_begins) {
        Nanos::ZERO => Nanos::ZERO,
        // Long enough for every breaker to open.
        lasts => lasts.min(span(700, 2_500, rng)),
    };
    // After the clock is set back by seconds, time stands still until the clock has caught up.
    let longer = match scenario.fault {
        SimFault::FailoverSkewed => Nanos::from_millis(5_500),
        _ => Nanos::ZERO,
    };
    let calm = |rng: &mut Rng| span(1_200, 2_200, rng);
    let recovery = Nanos::from_millis(2_200).plus(window).plus(window).plus(longer);
    let late = scenario.fault == SimFault::LateStore;
    let mut from = LOAD_BEGINS;
    let mut periods: Vec<LoadPeriod> = Vec::new();
    for i in 0..3 {
        let hit = i == usize::from(!late);
        let mut to = from.plus(calm(rng));
        if hit {
            scenario.fault_begins = if late { Nanos::ZERO } else { to };
            scenario.fault_ends = scenario.fault_begins.plus(lasts);
            to = scenario.fault_ends.plus(recovery).plus(calm(rng));
        }
        periods.push((from, to));
        from = to.plus(Nanos::from_secs(1));
    }
    scenario.ends = from.plus(LAST_REPLIES);
    scenario.load_periods = periods;
}
