//! What a run is about: how many nodes, which limit, who asks how much, and what goes wrong when.
//! Everything follows from the seed.

mod fault;
mod high_load;
mod late_replies;
mod permits;
mod reservations;
mod rules_file;
mod work;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Counting, OnStoreFailure};
use tidegate_core::units::Nanos;

pub use self::fault::SimFault;
pub use self::high_load::ScenarioKind;
pub(crate) use self::permits::MAX_SESSION;
pub use self::work::{PermitWork, ReservationWork, Work};
use crate::rng::Rng;

/// Which nodes a subject's requests reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// Any of them.
    Spread,
    /// Always the same.
    Sticky,
    /// One for a while, then the next.
    Rotating,
    /// Any of them, the first far more often than the last.
    Skewed,
}

/// How requests follow each other while there is load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrivalPattern {
    /// One by one, and now and then a few at once.
    Steady,
    /// The same, with pauses: so long, then nothing for so long.
    OnOff(Nanos, Nanos),
    /// Beside that, so many at once, this far apart.
    Surges(u64, Nanos),
}

/// From when to when there is load.
pub type LoadPeriod = (Nanos, Nanos);

/// Somebody who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimSubject {
    /// Requests arrive this far apart on average.
    pub mean_interval: Nanos,
    /// Where.
    pub routing: Routing,
    /// How.
    pub arrivals: ArrivalPattern,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all of it comes from.
    pub seed: u64,
    /// How many nodes.
    pub nodes: usize,
    /// The limit all subjects have.
    pub spec: Spec,
    /// A limit that all of them share, if there is one.
    pub ceiling: Option<Spec>,
    /// How the limit of each subject is counted.
    pub counting: Counting,
    /// How the shared one is.
    pub ceiling_counting: Counting,
    /// What decides without the store.
    pub on_failure: OnStoreFailure,
    /// Who asks.
    pub subjects: Vec<SimSubject>,
    /// What goes wrong.
    pub fault: SimFault,
    /// When it begins.
    pub fault_begins: Nanos,
    /// When it is over.
    pub fault_ends: Nanos,
    /// When the run is.
    pub ends: Nanos,
    /// How far behind a replica is.
    pub replica_lag: Nanos,
    /// How far the node's clocks are apart.
    pub clock_skew: Nanos,
    /// How many parts the store has.
    pub shards: usize,
    /// The part in which something goes wrong.
    pub hit_shard: usize,
    /// The part that each counter is in; the first, if there is only one.
    pub counter_shards: Vec<usize>,
    /// When there is load. Between, nodes only ping.
    pub load_periods: Vec<LoadPeriod>,
    /// How long a decision may wait for the store.
    pub budget: Nanos,
    /// How much farther from the store each node is than the next room, one way; nothing for those
    /// that are not named.
    pub extra_latency: Vec<Nanos>,
    /// What is asked of the nodes.
    pub work: Work,
    /// Of a thousand replies, how many are late, where some are.
    pub late_per_mille: u32,
}

/// The first requests.
pub const LOAD_BEGINS: Nanos = Nanos::from_millis(700);

/// The last requests are answered before the run ends.
const LAST_REPLIES: Nanos = Nanos::from_millis(20);

impl Scenario {
    /// The run that `seed` stands for: any fault.
    pub fn from_seed(seed: u64) -> Self {
        let fault = SimFault::ALL[(seed % SimFault::ALL.len() as u64) as usize];
        Scenario::with_fault(seed, fault)
    }

    /// The run of `seed` with a fault of choice.
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
            // From just enough to four times what is allowed.
            let load = rng.between(10, 40);
            let mean_interval = window.get() / count * 10 / load;
            SimSubject {
                mean_interval: Nanos::new(mean_interval),
                routing: rng.pick(&[
                    Routing::Spread,
                    Routing::Spread,
                    Routing::Sticky,
                    Routing::Rotating,
                ]),
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
        // Behind a clock set back by seconds, time stands still until it is caught up with.
        let longer = if fault == SimFault::FailoverSkewed {
            5_500
        } else {
            0
        };
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

    /// The run of `seed` with a store of three parts.
    pub fn sharded(seed: u64) -> Self {
        let faults = SimFault::OF_A_SHARD;
        let fault = faults[(seed % faults.len() as u64) as usize];
        Scenario::sharded_with(seed, fault)
    }

    /// The same with a fault of choice. Every part has a subject.
    pub fn sharded_with(seed: u64, fault: SimFault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e6c_63d0_876a_9a47) ^ 3);
        let mut scenario = Scenario::with_fault(seed, fault);
        let (shards, first) = (3, scenario.subjects[0]);
        while scenario.subjects.len() < shards + rng.below(2) as usize {
            scenario.subjects.push(SimSubject {
                routing: rng.pick(&[
                    Routing::Spread,
                    Routing::Spread,
                    Routing::Sticky,
                    Routing::Rotating,
                ]),
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
        scenario
            .counter_shards
            .push(rng.below(shards as u64) as usize);
        scenario.hit_shard = rng.below(shards as u64) as usize;
        scenario.shards = shards;
        scenario
    }

    /// The part that a counter is in at first.
    pub fn shard_of(&self, counter: usize) -> usize {
        self.counter_shards.get(counter).copied().unwrap_or(0)
    }

    /// The part that subjects move to.
    pub fn moves_to(&self) -> usize {
        (self.hit_shard + 1) % self.shards
    }

    /// How many counters there are: one of each subject, and the ceiling's.
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

    /// What is promised of it: the burst as it was written, before leases shortened it.
    pub fn promised_limit(&self, counter: usize) -> Limit {
        let mut spec = self.spec(counter).clone();
        spec.lease_ttl = None;
        compile(&spec)
    }

    /// How a counter is counted.
    pub fn counting(&self, counter: usize) -> Counting {
        match counter == self.subjects.len() {
            true => self.ceiling_counting,
            false => self.counting,
        }
    }

    /// Whether anything is decided without asking the store first.
    pub fn counts_ahead(&self) -> bool {
        let mut counters = 0..self.counters();
        counters.any(|counter| self.counting(counter) != Counting::Exact)
    }

    /// How much farther than the next room a node is, one way.
    pub fn extra_latency_of(&self, node: usize) -> Nanos {
        self.extra_latency.get(node).copied().unwrap_or(Nanos::ZERO)
    }

    /// Whether every node sees whoever is counted.
    pub fn reaches_all_nodes(&self, counter: usize) -> bool {
        match self.subjects.get(counter) {
            Some(subject) => subject.routing == Routing::Spread,
            None => self
                .subjects
                .iter()
                .all(|subject| subject.routing == Routing::Spread),
        }
    }
}

/// A rate that is known to be fit.
pub(crate) fn compile(spec: &Spec) -> Limit {
    Limit::compile(spec, Precision::Memory).expect("scenarios have small windows and counts")
}
