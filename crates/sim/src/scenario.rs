//! The scenario of a run: nodes, limits, traffic, and the fault with its time. The seed decides all of it.

mod fault;
mod high_load;
mod late_replies;
mod permits;
mod reservations;
mod restarts;
mod rules_file;
mod work;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Counting, OnStoreFailure};
use tidegate_core::units::Nanos;

pub use self::fault::SimFault;
pub use self::high_load::ScenarioKind;
pub use self::work::{PermitWork, ReservationWork, Work};
use crate::rng::Rng;

/// Which nodes a subject's requests reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// Every node, at random.
    Spread,
    /// Always the same node.
    Sticky,
    /// One node for a while, then the next.
    Rotating,
    /// Every node, the first far more often than the last.
    Skewed,
}

/// The arrival pattern of requests under load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrivalPattern {
    /// One by one, with occasional small bursts.
    Steady,
    /// Steady for the first span, silent for the second, repeated.
    OnOff(Nanos, Nanos),
    /// Steady, plus surges of this size at this interval.
    Surges(u64, Nanos),
}

/// Begin and end of a period of load.
pub type LoadPeriod = (Nanos, Nanos);

/// A client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimSubject {
    /// The mean interval between requests.
    pub mean_interval: Nanos,
    /// The nodes that its requests reach.
    pub routing: Routing,
    /// The pattern of its requests.
    pub arrivals: ArrivalPattern,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that decides all other fields.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: usize,
    /// The limit of each subject.
    pub spec: Spec,
    /// A limit that all subjects share, if there is one.
    pub ceiling: Option<Spec>,
    /// The counting mode of the subjects' limits.
    pub counting: Counting,
    /// The counting mode of the shared limit.
    pub ceiling_counting: Counting,
    /// The fallback when the store fails.
    pub on_failure: OnStoreFailure,
    /// The clients.
    pub subjects: Vec<SimSubject>,
    /// The fault.
    pub fault: SimFault,
    /// When the fault begins.
    pub fault_begins: Nanos,
    /// When the fault ends.
    pub fault_ends: Nanos,
    /// When the run ends.
    pub ends: Nanos,
    /// The replication lag.
    pub replica_lag: Nanos,
    /// The difference between the wall clocks of one node and the next.
    pub clock_skew: Nanos,
    /// The number of shards.
    pub shards: usize,
    /// The shard that the fault hits.
    pub hit_shard: usize,
    /// The shard of each counter; empty if there is only one shard.
    pub counter_shards: Vec<usize>,
    /// Periods of load. Between them, nodes only send heartbeats.
    pub load_periods: Vec<LoadPeriod>,
    /// The time that a decision may wait for the store.
    pub budget: Nanos,
    /// One-way latency of each node in addition to that of a store in the same zone; zero for nodes without
    /// an entry.
    pub extra_latency: Vec<Nanos>,
    /// The kind of requests that clients send.
    pub work: Work,
    /// Late replies, per mille, for faults with late replies.
    pub late_per_mille: u32,
}

/// When the first requests are sent.
pub const LOAD_BEGINS: Nanos = Nanos::from_millis(700);

/// Time before the end of the run for the last replies.
const LAST_REPLIES: Nanos = Nanos::from_millis(20);

impl Scenario {
    /// The run of `seed`, with a fault that the seed picks.
    pub fn from_seed(seed: u64) -> Self {
        let fault = SimFault::ALL[(seed % SimFault::ALL.len() as u64) as usize];
        Scenario::with_fault(seed, fault)
    }

    /// The run of `seed` with the given fault.
    pub fn with_fault(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let algorithm = rng.pick(&Algorithm::ALL);
        let window = Nanos::from_millis(rng.pick(&[1_000, 1_500, 2_000, 3_000]));
        let count = match rng.below(6) {
            0 => rng.between(1, 6),
            1 => rng.between(60, 90),
            _ => rng.between(10, 40),
        };
        let mut spec = Spec::new(algorithm, count, window);
        if algorithm.takes_burst() && rng.chance(500) {
            spec.burst = Some(rng.between(1, 2 * count));
        }
        let subjects = (0..rng.between(1, 2)).map(|_| {
            // From just the limit to four times the limit.
            let load = rng.between(10, 40);
            let mean_interval = window.get() / count * 10 / load;
            SimSubject {
                mean_interval: Nanos::new(mean_interval),
                routing: rng.pick(&[Routing::Spread, Routing::Spread, Routing::Sticky, Routing::Rotating]),
                arrivals: ArrivalPattern::Steady,
            }
        });
        let subjects: Vec<SimSubject> = subjects.collect();
        let on_failure = match rng.below(12) {
            0 => OnStoreFailure::Allow,
            1 => OnStoreFailure::Deny,
            _ => OnStoreFailure::Local,
        };
        let ceiling = rng.chance(250).then(|| {
            let algorithm = rng.pick(&Algorithm::ALL);
            let count = (count * subjects.len() as u64 * 7 / 10).max(1);
            Spec::new(algorithm, count, window)
        });
        let fault_begins = match fault {
            SimFault::LateStore => Nanos::ZERO,
            _ => Nanos::from_millis(rng.between(3_500, 5_500)),
        };
        let lasts = match fault {
            SimFault::Restart => rng.between(5, 60),
            SimFault::Drain => rng.between(10, 1_500),
            SimFault::Failover | SimFault::FailoverSkewed => rng.between(300, 2_500),
            SimFault::DeathWithStore => rng.between(10, 1_500),
            SimFault::Pause => rng.between(50, 3_000),
            SimFault::Flush | SimFault::StepForward | SimFault::StepBack | SimFault::Move => 0,
            _ => rng.between(2_500, 5_000),
        };
        let fault_ends = fault_begins.plus(Nanos::from_millis(lasts));
        // After the clock is set back by seconds, time stands still until the clock has caught up.
        let longer = if fault == SimFault::FailoverSkewed { 5_500 } else { 0 };
        let recovery = Nanos::new(3 * window.get()).plus(Nanos::from_millis(3_500 + longer));
        let ends = fault_ends.plus(recovery);
        Scenario {
            seed,
            nodes: rng.between(3, 5) as usize,
            spec,
            ceiling,
            counting: Counting::Exact,
            ceiling_counting: Counting::Exact,
            on_failure,
            subjects,
            fault,
            fault_begins,
            fault_ends,
            ends,
            replica_lag: Nanos::from_millis(rng.between(1, 400)),
            clock_skew: Nanos::from_secs(30),
            shards: 1,
            hit_shard: 0,
            counter_shards: Vec::new(),
            load_periods: vec![(LOAD_BEGINS, ends.since(LAST_REPLIES))],
            budget: Nanos::from_millis(5),
            extra_latency: Vec::new(),
            work: Work::Checks,
            late_per_mille: 0,
        }
    }

    /// The run of `seed` with a store of three shards.
    pub fn sharded(seed: u64) -> Self {
        let faults = SimFault::OF_A_SHARD;
        let fault = faults[(seed % faults.len() as u64) as usize];
        Scenario::sharded_with(seed, fault)
    }

    /// The same with the given fault. Every shard has a subject.
    pub fn sharded_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e6c_63d0_876a_9a47) ^ 3);
        let mut scenario = Scenario::with_fault(seed, fault);
        let (shards, first) = (3, scenario.subjects[0]);
        while scenario.subjects.len() < shards + rng.below(2) as usize {
            scenario.subjects.push(SimSubject {
                routing: rng.pick(&[Routing::Spread, Routing::Spread, Routing::Sticky, Routing::Rotating]),
                ..first
            });
        }
        let window = scenario.spec.window.length();
        let count = scenario.spec.count * scenario.subjects.len() as u64 * 7 / 10;
        let algorithm = rng.pick(&Algorithm::ALL);
        let ceiling = Spec::new(algorithm, count.max(1), window);
        scenario.ceiling = rng.chance(400).then_some(ceiling);
        let subjects = 0..scenario.subjects.len();
        scenario.counter_shards = subjects.map(|subject| subject % shards).collect();
        scenario.counter_shards.push(rng.below(shards as u64) as usize);
        scenario.hit_shard = rng.below(shards as u64) as usize;
        scenario.shards = shards;
        scenario
    }

    /// The initial shard of a counter.
    pub fn shard_of(&self, counter: usize) -> usize {
        self.counter_shards.get(counter).copied().unwrap_or(0)
    }

    /// The shard to which subjects move.
    pub fn moves_to(&self) -> usize {
        (self.hit_shard + 1) % self.shards
    }

    /// The number of counters: one per subject, and one for the ceiling.
    pub fn counters(&self) -> usize {
        self.subjects.len() + usize::from(self.ceiling.is_some())
    }

    /// The rate of a counter.
    pub fn spec(&self, counter: usize) -> &Spec {
        match &self.ceiling {
            Some(ceiling) if counter == self.subjects.len() => ceiling,
            _ => &self.spec,
        }
    }

    /// The limit of a counter, compiled as rules are.
    pub fn limit(&self, counter: usize) -> Limit {
        compile(self.spec(counter))
    }

    /// The limit that is promised for a counter: with the burst as written, before it is shortened for
    /// leases.
    pub fn promised_limit(&self, counter: usize) -> Limit {
        let mut spec = self.spec(counter).clone();
        spec.lease_ttl = None;
        compile(&spec)
    }

    /// The counting mode of a counter.
    pub fn counting(&self, counter: usize) -> Counting {
        if counter == self.subjects.len() { self.ceiling_counting } else { self.counting }
    }

    /// Whether any limit is decided without a call to the store.
    pub fn counts_ahead(&self) -> bool {
        let mut counters = 0..self.counters();
        counters.any(|counter| self.counting(counter) != Counting::Exact)
    }

    /// The additional one-way latency of a node.
    pub fn extra_latency_of(&self, node: usize) -> Nanos {
        self.extra_latency.get(node).copied().unwrap_or(Nanos::ZERO)
    }

    /// Whether the requests of a counter reach every node.
    pub fn reaches_all_nodes(&self, counter: usize) -> bool {
        match self.subjects.get(counter) {
            Some(subject) => subject.routing == Routing::Spread,
            None => self.subjects.iter().all(|subject| subject.routing == Routing::Spread),
        }
    }
}

/// Compiles a rate that is known to be valid.
pub(crate) fn compile(spec: &Spec) -> Limit {
    Limit::compile(spec, Precision::Memory).expect("scenarios have small windows and counts")
}
