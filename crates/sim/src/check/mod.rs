//! Checkers of a history, from both sides: too much, too little, too late, or by the wrong rules.

mod accounting;
mod bounds;
mod late_replies;
mod leases;
mod lenient;
mod liveness;
mod permits;
mod reservation_oracle;
mod reservations;
mod shards;
mod times;
mod under_admission;

use std::fmt;

use tidegate::resilience::{ResilienceSettings, StoreEvent};
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::history::{DecisionRecord, History};
use crate::scenario::{LoadPeriod, Scenario, SimFault, Work};

/// A violation of a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenPromise {
    /// The promise.
    pub promise: &'static str,
    /// The evidence.
    pub detail: String,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

/// All violations in a history.
pub fn judge(scenario: &Scenario, history: &History) -> Vec<BrokenPromise> {
    let case = CheckCase::new(scenario, history);
    let mut findings = Vec::new();
    liveness::judge(&case, &mut findings);
    match scenario.work {
        Work::Checks => {}
        Work::Reservations(estimates) => {
            reservations::judge(&case, estimates, &mut findings);
            return findings;
        }
        Work::Permits(permits) => {
            permits::judge(&case, permits, &mut findings);
            return findings;
        }
    }
    if scenario.shards > 1 {
        shards::judge(&case, &mut findings);
    }
    if scenario.shards == 1 || scenario.ceiling.is_some() {
        judge_amounts(&case, &mut findings);
        return findings;
    }
    for shard in 0..scenario.shards {
        let (scenario, history) = shards::single_shard(&case, shard);
        let case = CheckCase::new(&scenario, &history);
        judge_amounts(&case, &mut findings);
    }
    findings
}

/// All violations of bounds on admissions.
fn judge_amounts(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    liveness::judge_loss_detection(case, findings);
    bounds::judge(case, findings);
    under_admission::judge(case, findings);
    accounting::judge(case, findings);
    leases::judge(case, findings);
    lenient::judge(case, findings);
    late_replies::judge(case, findings);
}

/// The maximum that a counter admitted, in percent of its limit: the smallest multiple of the limit that
/// bounds all admissions, at least 100.
pub fn admitted_percent(scenario: &Scenario, history: &History, counter: usize) -> u64 {
    bounds::admitted_percent(&CheckCase::new(scenario, history), counter)
}

/// The maximum overshoot of a leniently counted limit, and its bound.
pub fn overshoot(scenario: &Scenario, history: &History, counter: usize) -> (u64, u64) {
    lenient::overshoot(&CheckCase::new(scenario, history), counter)
}

/// A history and its scenario.
struct CheckCase<'a> {
    scenario: &'a Scenario,
    history: &'a History,
    /// When decisions were made without the store, in order.
    local: Vec<Nanos>,
}

impl<'a> CheckCase<'a> {
    fn new(scenario: &'a Scenario, history: &'a History) -> Self {
        let records = history.records.iter();
        let local = records.filter(|r| r.is_local());
        let mut local: Vec<Nanos> = local.map(|r| r.done).collect();
        local.sort_unstable();
        CheckCase { scenario, history, local }
    }
}

impl CheckCase<'_> {
    /// The decisions on one counter.
    fn records_of(&self, counter: usize) -> impl Iterator<Item = &DecisionRecord> {
        let all = self.history.records.iter();
        let ceiling = counter == self.scenario.subjects.len();
        all.filter(move |record| ceiling || record.subject == counter)
    }

    fn counters(&self) -> std::ops::Range<usize> {
        0..self.scenario.counters()
    }

    /// Whether some node is without its store or was so recently.
    fn is_recovering(&self, at: Nanos) -> bool {
        let lately = |then: Nanos| then <= at && at.since(then) < Nanos::from_millis(600);
        let earlier = self.local.partition_point(|then| *then <= at);
        let local = earlier > 0 && lately(self.local[earlier - 1]);
        let changed = self.history.events.iter().any(|(then, _, event)| {
            matches!(event, StoreEvent::BreakerOpened { .. } | StoreEvent::BreakerClosed) && lately(*then)
        });
        let shards = 0..self.scenario.shards;
        let mut each = shards.flat_map(|shard| (0..self.scenario.nodes).map(move |node| (shard, node)));
        let open = each.any(|(shard, node)| {
            let events = self.history.events_of(shard);
            let of_breaker = events.filter(|(then, of, event)| {
                let breaker = matches!(event, StoreEvent::BreakerOpened { .. } | StoreEvent::BreakerClosed);
                breaker && *of == node && *then <= at
            });
            of_breaker.last().is_some_and(|(_, _, e)| matches!(e, StoreEvent::BreakerOpened { .. }))
        });
        local || changed || open
    }

    /// From when on every decision must be exact again.
    fn recovered_at(&self) -> Nanos {
        let fault = self.scenario.fault;
        let wait = if fault.loses_counts() {
            // The breaker closes; the nodes restore what they remember and wait for each other.
            Nanos::from_millis(2_200)
        } else {
            Nanos::from_secs(1)
        };
        // A breaker that opens again and again waits for 24 pings.
        let wait = match fault {
            SimFault::OutagesAndRestarts => wait.plus(Nanos::from_millis(5_300)),
            _ => wait,
        };
        // The last replies, including those to heartbeats, are late.
        let late = if fault.is_lateness() { Nanos::new(10 * self.budget().get()) } else { Nanos::ZERO };
        let wait = wait.plus(late);
        // New permits wait for the reports of all nodes.
        let sync_wait = match self.scenario.work {
            Work::Permits(_) => Nanos::from_secs(1),
            _ => Nanos::ZERO,
        };
        // For far nodes each step of the recovery takes a round trip.
        let steps = Nanos::new(8 * self.max_round_trip().get());
        self.scenario.fault_ends.plus(wait).plus(sync_wait).plus(steps)
    }

    /// The additional round-trip time of the farthest node.
    fn max_round_trip(&self) -> Nanos {
        let far = self.scenario.extra_latency.iter().max().copied();
        Nanos::new(2 * far.unwrap_or(Nanos::ZERO).get())
    }

    /// Periods of load without a fault and without its after-effects.
    fn calm_periods(&self) -> Vec<LoadPeriod> {
        let scenario = self.scenario;
        let calm = match scenario.fault {
            SimFault::None => vec![(Nanos::ZERO, scenario.ends)],
            SimFault::LateStore | SimFault::NodeDeath | SimFault::Drain => {
                vec![(self.recovered_at(), scenario.ends)]
            }
            SimFault::Drift => Vec::new(),
            _ => vec![(Nanos::ZERO, scenario.fault_begins), (self.recovered_at(), scenario.ends)],
        };
        let periods = scenario.load_periods.iter();
        let cut = periods.flat_map(|period| {
            let within = |span: &LoadPeriod| (span.0.max(period.0), span.1.min(period.1));
            calm.iter().map(within)
        });
        cut.filter(|(from, to)| from < to).collect()
    }

    fn budget(&self) -> Nanos {
        self.scenario.budget
    }

    /// The budget of a settlement, whose decision is already made.
    fn follow_up_budget(&self) -> Nanos {
        ResilienceSettings::default().follow_up_budget
    }
}

/// Whether a decision came from the store, or from its recent replies or leases.
fn is_exact(record: &DecisionRecord) -> bool {
    matches!(record.source, Source::Exact | Source::DenyCache | Source::Lease | Source::Lenient)
}
