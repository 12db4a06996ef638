//! What a run is about: how many nodes, which limit, who asks how much, and what goes wrong when.
//! Everything follows from the seed.

mod busy;
mod fault;
mod late;
mod open;
mod reserving;
mod work;
mod written;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Counting, OnStoreFailure};
use tidegate_core::units::Nanos;

pub use self::busy::Kind;
pub use self::fault::Fault;
pub(crate) use self::open::LONGEST_STAY;
pub use self::work::{Estimates, Places, Work};
use crate::rng::Rng;

/// Which nodes a subject's requests reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Any of them.
    Spread,
    /// Always the same.
    Sticky,
    /// One for a while, then the next.
    Wandering,
    /// Any of them, the first far more often than the last.
    Skewed,
}

/// How requests follow each other while there is load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rhythm {
    /// One by one, and now and then a few at once.
    Steady,
    /// The same, with pauses: so long, then nothing for so long.
    OnOff(Nanos, Nanos),
    /// Beside that, so many at once, this far apart.
    Surges(u64, Nanos),
}

/// From when to when there is load.
pub type Bout = (Nanos, Nanos);

/// Somebody who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Requests arrive this far apart on average.
    pub every: Nanos,
    /// Where.
    pub way: Way,
    /// How.
    pub rhythm: Rhythm,
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
    pub shared: Counting,
    /// What decides without the store.
    pub on_failure: OnStoreFailure,
    /// Who asks.
    pub subjects: Vec<Subject>,
    /// What goes wrong.
    pub fault: Fault,
    /// When it begins.
    pub begins: Nanos,
    /// When it is over.
    pub clears: Nanos,
    /// When the run is.
    pub ends: Nanos,
    /// How far behind a replica is.
    pub lag: Nanos,
    /// How far the node's clocks are apart.
    pub skew: Nanos,
    /// How many parts the store has.
    pub parts: usize,
    /// The part in which something goes wrong.
    pub hit: usize,
    /// The part that each counter is in; the first, if there is only one.
    pub homes: Vec<usize>,
    /// When there is load. Between, nodes only ping.
    pub bouts: Vec<Bout>,
    /// How long a decision may wait for the store.
    pub budget: Nanos,
    /// How much farther from the store each node is than the next room, one way; nothing for those
    /// that are not named.
    pub far: Vec<Nanos>,
    /// What is asked of the nodes.
    pub work: Work,
    /// Of a thousand replies, how many are late, where some are.
    pub late_per_mille: u32,
}

/// The first requests.
pub const LOAD_BEGINS: Nanos = Nanos::from_millis(700);

/// The last requests are answered before the run ends.
const LAST_ANSWERS: Nanos = Nanos::from_millis(20);

impl Scenario {
    /// The run that `seed` stands for: any fault.
    pub fn of(seed: u64) -> Self {
        let fault = Fault::ALL[(seed % Fault::ALL.len() as u64) as usize];
        Scenario::with(seed, fault)
    }

    /// The run of `seed` with a fault of choice.
    pub fn with(seed: u64, fault: Fault) -> Self {
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
            let every = window.get() / count * 10 / load;
            Subject {
                every: Nanos::new(every),
                way: rng.pick(&[Way::Spread, Way::Spread, Way::Sticky, Way::Wandering]),
                rhythm: Rhythm::Steady,
            }
        });
        let subjects: Vec<Subject> = subjects.collect();
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
        let begins = match fault {
            Fault::LateStore => Nanos::ZERO,
            _ => Nanos::from_millis(rng.between(3_500, 5_500)),
        };
        let lasts = match fault {
            Fault::Restart => rng.between(5, 60),
            Fault::Drain => rng.between(10, 1_500),
            Fault::Failover | Fault::FailoverSkewed => rng.between(300, 2_500),
            Fault::DeathWithStore => rng.between(10, 1_500),
            Fault::Pause => rng.between(50, 3_000),
            Fault::Flush | Fault::StepForward | Fault::StepBack | Fault::Move => 0,
            _ => rng.between(2_500, 5_000),
        };
        let clears = begins.plus(Nanos::from_millis(lasts));
        // Behind a clock set back by seconds, time stands still until it is caught up with.
        let longer = if fault == Fault::FailoverSkewed {
            5_500
        } else {
            0
        };
        let settle = Nanos::new(3 * window.get()).plus(Nanos::from_millis(3_500 + longer));
        let ends = clears.plus(settle);
        Scenario {
            seed,
            nodes: rng.between(3, 5) as usize,
            spec,
            ceiling,
            counting: Counting::Exact,
            shared: Counting::Exact,
            on_failure,
            subjects,
            fault,
            begins,
            clears,
            ends,
            lag: Nanos::from_millis(rng.between(1, 400)),
            skew: Nanos::from_secs(30),
            parts: 1,
            hit: 0,
            homes: Vec::new(),
            bouts: vec![(LOAD_BEGINS, ends.since(LAST_ANSWERS))],
            budget: Nanos::from_millis(5),
            far: Vec::new(),
            work: Work::Checks,
            late_per_mille: 0,
        }
    }

    /// The run of `seed` with a store of three parts.
    pub fn in_parts(seed: u64) -> Self {
        let faults = Fault::OF_A_PART;
        let fault = faults[(seed % faults.len() as u64) as usize];
        Scenario::in_parts_with(seed, fault)
    }

    /// The same with a fault of choice. Every part has a subject.
    pub fn in_parts_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e6c_63d0_876a_9a47) ^ 3);
        let mut scenario = Scenario::with(seed, fault);
        let (parts, first) = (3, scenario.subjects[0]);
        while scenario.subjects.len() < parts + rng.below(2) as usize {
            scenario.subjects.push(Subject {
                way: rng.pick(&[Way::Spread, Way::Spread, Way::Sticky, Way::Wandering]),
                ..first
            });
        }
        let window = scenario.spec.window.length();
        let count = scenario.spec.count * scenario.subjects.len() as u64 * 7 / 10;
        let algorithm = rng.pick(&Algorithm::ALL);
        let ceiling = Spec::new(algorithm, count.max(1), window);
        scenario.ceiling = rng.chance(400).then_some(ceiling);
        let subjects = 0..scenario.subjects.len();
        scenario.homes = subjects.map(|subject| subject % parts).collect();
        scenario.homes.push(rng.below(parts as u64) as usize);
        scenario.hit = rng.below(parts as u64) as usize;
        scenario.parts = parts;
        scenario
    }

    /// The part that a counter is in at first.
    pub fn home(&self, counter: usize) -> usize {
        self.homes.get(counter).copied().unwrap_or(0)
    }

    /// The part that subjects move to.
    pub fn moves_to(&self) -> usize {
        (self.hit + 1) % self.parts
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
        compiled(self.spec(counter))
    }

    /// What is promised of it: the burst as it was written, before leases shortened it.
    pub fn promise(&self, counter: usize) -> Limit {
        let mut spec = self.spec(counter).clone();
        spec.leased = None;
        compiled(&spec)
    }

    /// How a counter is counted.
    pub fn counting(&self, counter: usize) -> Counting {
        match counter == self.subjects.len() {
            true => self.shared,
            false => self.counting,
        }
    }

    /// Whether anything is decided without asking the store first.
    pub fn counts_ahead(&self) -> bool {
        let mut counters = 0..self.counters();
        counters.any(|counter| self.counting(counter) != Counting::Exact)
    }

    /// How much farther than the next room a node is, one way.
    pub fn far(&self, node: usize) -> Nanos {
        self.far.get(node).copied().unwrap_or(Nanos::ZERO)
    }

    /// Whether every node sees whoever is counted.
    pub fn spread(&self, counter: usize) -> bool {
        match self.subjects.get(counter) {
            Some(subject) => subject.way == Way::Spread,
            None => self
                .subjects
                .iter()
                .all(|subject| subject.way == Way::Spread),
        }
    }
}

/// A rate that is known to be fit.
pub(crate) fn compiled(spec: &Spec) -> Limit {
    Limit::compile(spec, Precision::Memory).expect("scenarios have small windows and counts")
}
