//! Runs with enough traffic to draw in advance: large limits, load from half to three times of them,
//! nodes that see very different parts of it, and long rests between.
//!
//! Every run has three bouts of load. What goes wrong does so in one of them, so that the others show
//! a cluster that was never hit and one that is well again.

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::Counting;
use tidegate_core::units::Nanos;

use super::{Bout, Fault, LAST_ANSWERS, LOAD_BEGINS, Rhythm, Scenario, Subject, Way};
use crate::rng::Rng;

/// A family of runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Small limits, each request asks the store.
    Whole,
    /// The same with a store of three parts.
    Parts,
    /// Units drawn in advance.
    Leased,
    /// Local counts that are synchronised later.
    Lenient,
    /// Units drawn in advance by nodes far from the store.
    Region,
    /// Estimates that are settled, or not.
    Reserving,
    /// Slots of what may be open at once.
    Slots,
    /// A healthy store whose replies are late.
    Late,
}

impl Kind {
    /// Every one.
    pub const ALL: [Kind; 8] = [
        Kind::Whole,
        Kind::Parts,
        Kind::Leased,
        Kind::Lenient,
        Kind::Region,
        Kind::Reserving,
        Kind::Slots,
        Kind::Late,
    ];

    /// What `replay` and `soak` call it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Whole => "whole",
            Kind::Parts => "parts",
            Kind::Leased => "leased",
            Kind::Lenient => "lenient",
            Kind::Region => "region",
            Kind::Reserving => "reserving",
            Kind::Slots => "slots",
            Kind::Late => "late",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The run of this kind that `seed` stands for.
    pub fn scenario(self, seed: u64) -> Scenario {
        match self {
            Kind::Whole => Scenario::of(seed),
            Kind::Parts => Scenario::in_parts(seed),
            Kind::Leased => Scenario::leased(seed),
            Kind::Lenient => Scenario::lenient(seed),
            Kind::Region => Scenario::region(seed),
            Kind::Reserving => Scenario::reserving(seed),
            Kind::Slots => Scenario::slots(seed),
            Kind::Late => Scenario::late(seed),
        }
    }
}

/// Algorithms whose units may be drawn in advance.
const LEASABLE: [Algorithm; 5] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

pub(super) fn any_fault(seed: u64) -> Fault {
    Fault::OF_A_CROWD[(seed % Fault::OF_A_CROWD.len() as u64) as usize]
}

impl Scenario {
    /// The run of `seed` in which units are drawn in advance.
    pub fn leased(seed: u64) -> Self {
        Scenario::leased_with(seed, any_fault(seed))
    }

    /// The same with a fault of choice.
    pub fn leased_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 5);
        let mut scenario = busy(seed, fault, &LEASABLE, &mut rng);
        let lasts = Nanos::from_millis(rng.pick(&[20, 50, 100, 200, 500, 1_000, 2_000]));
        scenario.lease(lasts, &mut rng);
        scenario
    }

    /// The run of `seed` in which each node counts for itself and tells the others later.
    pub fn lenient(seed: u64) -> Self {
        Scenario::lenient_with(seed, any_fault(seed))
    }

    /// The same with a fault of choice.
    pub fn lenient_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 7);
        let mut scenario = busy(seed, fault, &LEASABLE, &mut rng);
        scenario.counting = Counting::Lenient;
        scenario.shared = rng.pick(&[Counting::Lenient, Counting::Exact]);
        scenario
    }

    /// A run in which nodes that have all just heard the same are asked for everything at the same
    /// instant, and nothing goes wrong: what lenient counting is worst at.
    pub fn stampede(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 13);
        let mut scenario = Scenario::lenient_with(seed, Fault::None);
        let (nodes, count) = (rng.between(2, 8), rng.between(40, 150));
        scenario.nodes = nodes as usize;
        scenario.ceiling = None;
        let window = Nanos::from_millis(rng.pick(&[1_000, 2_000]));
        scenario.spec = Spec::new(scenario.spec.algorithm, count, window);
        // A word from the store is of use for 50 ms: every node is asked more often than that.
        let (every, at_once) = (Nanos::from_millis(60 / nodes), 3 * nodes * count);
        scenario.subjects = vec![Subject {
            every,
            way: Way::Spread,
            rhythm: Rhythm::Surges(at_once, Nanos::from_millis(rng.between(650, 950))),
        }];
        scenario
    }

    /// The run of `seed` in which some nodes are far from the store and draw in advance for seconds.
    pub fn region(seed: u64) -> Self {
        Scenario::region_with(seed, any_fault(seed))
    }

    /// The same with a fault of choice.
    pub fn region_with(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 11);
        let mut scenario = busy(seed, fault, &LEASABLE, &mut rng);
        let lasts = Nanos::from_millis(rng.between(1_000, 5_000));
        // A burst of half a second is no use to somebody who hears of it a third of a second later.
        let window = Nanos::from_secs(rng.pick(&[5, 10]));
        let rate = scenario.spec.count * 1_000 / scenario.spec.window.length().millis_up();
        // With more, a node has more calls under way than it may before it first hears of the store.
        let most = rate.min(1_700);
        for subject in &mut scenario.subjects {
            subject.every = Nanos::new(subject.every.get() * rate / most);
        }
        let rate = most;
        scenario.spec = Spec::new(
            scenario.spec.algorithm,
            rate * window.get() / 1_000_000_000,
            window,
        );
        scenario.ceiling = None;
        scenario.lease(lasts, &mut rng);
        let one_way = rng.between(40, 150);
        let near = rng.below(scenario.nodes as u64) as usize;
        let far = |node| Nanos::from_millis(if node < near { 0 } else { one_way });
        scenario.far = (0..scenario.nodes).map(far).collect();
        scenario.budget = Nanos::from_millis(rng.between(2 * one_way + 60, 500));
        scenario.after(Nanos::from_secs(3)) // from afar it takes a while to meet
    }

    /// Draws in advance: both limits, or one of them.
    fn lease(&mut self, lasts: Nanos, rng: &mut Rng) {
        let ways = [
            (Counting::Leased, Counting::Leased),
            (Counting::Exact, Counting::Leased),
            (Counting::Leased, Counting::Exact),
        ];
        (self.counting, self.shared) = match self.ceiling {
            Some(_) => rng.pick(&ways),
            None => (Counting::Leased, Counting::Exact),
        };
        let of = |counting| (counting == Counting::Leased).then_some(lasts);
        self.spec.leased = of(self.counting);
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.leased = of(self.shared);
        }
    }

    /// The same run, `span` later.
    fn after(mut self, span: Nanos) -> Self {
        if self.fault != Fault::LateStore {
            self.begins = self.begins.plus(span);
        }
        self.clears = self.clears.plus(span);
        self.ends = self.ends.plus(span);
        for (from, to) in &mut self.bouts {
            (*from, *to) = (from.plus(span), to.plus(span));
        }
        self
    }

    /// The same run with longer rests between the bouts, until `ends`.
    #[must_use]
    pub fn stretched(mut self, ends: Nanos) -> Self {
        let more = ends.since(self.ends).get();
        let gaps = self.bouts.len().saturating_sub(1) as u64;
        let later = |bout: usize, at: Nanos| match gaps {
            0 => at,
            gaps => at.plus(Nanos::new(more * bout as u64 / gaps)),
        };
        let hit = self.bouts.iter().position(|(_, to)| self.begins < *to);
        let hit = hit.unwrap_or(0);
        self.begins = later(hit, self.begins);
        self.clears = later(hit, self.clears);
        for (i, (from, to)) in self.bouts.iter_mut().enumerate() {
            (*from, *to) = (later(i, *from), later(i, *to));
        }
        self.ends = self.ends.max(ends);
        self
    }
}

/// A run under load, counted exactly so far.
fn busy(seed: u64, fault: Fault, algorithms: &[Algorithm], rng: &mut Rng) -> Scenario {
    let mut scenario = Scenario::with(seed, fault);
    scenario.nodes = rng.between(2, 8) as usize;
    // A replica that is close behind: it looks as often as that, for the whole of a long run.
    scenario.lag = Nanos::from_millis(rng.between(20, 400));
    scenario.spec = limit(rng.pick(algorithms), rng);
    let window = scenario.spec.window.length();
    let subjects = rng.between(1, 2);
    let load = rng.pick(&[5, 9, 12, 30]);
    let every = Nanos::new(window.get() * 10 / scenario.spec.count / load);
    scenario.subjects = (0..subjects)
        .map(|_| subject(&scenario.spec, every, rng))
        .collect();
    let ceiling = Spec::new(
        rng.pick(algorithms),
        scenario.spec.count * subjects * 7 / 10,
        window,
    );
    scenario.ceiling = rng.chance(350).then_some(ceiling);
    timed(&mut scenario, rng);
    scenario
}

/// From 200 to 5,000 a second.
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

fn subject(spec: &Spec, every: Nanos, rng: &mut Rng) -> Subject {
    let span = |least, most, rng: &mut Rng| Nanos::from_millis(rng.between(least, most));
    Subject {
        every,
        way: rng.pick(&[
            Way::Spread,
            Way::Skewed,
            Way::Skewed,
            Way::Sticky,
            Way::Wandering,
        ]),
        rhythm: match rng.below(6) {
            0 | 1 => Rhythm::OnOff(span(20, 300, rng), span(20, 600, rng)),
            2 => {
                // Not more than a node asks for at a time, or it takes its store for away.
                let at_once = rng.between(spec.count / 2, spec.count).min(1_500);
                Rhythm::Surges(at_once, span(400, 1_500, rng))
            }
            _ => Rhythm::Steady,
        },
    }
}

/// Three bouts with a second between, and the fault in the second of them; in the first, where the
/// store comes late.
fn timed(scenario: &mut Scenario, rng: &mut Rng) {
    let window = scenario.spec.window.length();
    let span = |least, most, rng: &mut Rng| Nanos::from_millis(rng.between(least, most));
    let lasts = match scenario.clears.since(scenario.begins) {
        Nanos::ZERO => Nanos::ZERO,
        // Long enough for every breaker to open.
        lasts => lasts.min(span(700, 2_500, rng)),
    };
    // Behind a clock set back by seconds, time stands still until it is caught up with.
    let longer = match scenario.fault {
        Fault::FailoverSkewed => Nanos::from_millis(5_500),
        _ => Nanos::ZERO,
    };
    let calm = |rng: &mut Rng| span(1_200, 2_200, rng);
    let settles = Nanos::from_millis(2_200)
        .plus(window)
        .plus(window)
        .plus(longer);
    let late = scenario.fault == Fault::LateStore;
    let mut from = LOAD_BEGINS;
    let mut bouts: Vec<Bout> = Vec::new();
    for i in 0..3 {
        let hit = i == usize::from(!late);
        let mut to = from.plus(calm(rng));
        if hit {
            scenario.begins = if late { Nanos::ZERO } else { to };
            scenario.clears = scenario.begins.plus(lasts);
            to = scenario.clears.plus(settles).plus(calm(rng));
        }
        bouts.push((from, to));
        from = to.plus(Nanos::from_secs(1));
    }
    scenario.ends = from.plus(LAST_ANSWERS);
    scenario.bouts = bouts;
}
