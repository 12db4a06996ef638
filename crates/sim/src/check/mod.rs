//! Judges of a history, from both sides: too much, too little, too late, or not as told.

mod bounds;
mod conduct;
mod estimates;
mod late;
mod leases;
mod ledger;
mod lenient;
mod lower;
mod parts;
mod reserving;
mod slots;
mod times;

use std::fmt;

use tidegate::resilience::{Event, Settings};
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::history::{History, Record};
use crate::scenario::{Bout, Fault, Scenario, Work};

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which promise is broken.
    pub promise: &'static str,
    /// How.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

/// Everything that is wrong with a history.
pub fn judge(scenario: &Scenario, history: &History) -> Vec<Finding> {
    let case = Case::new(scenario, history);
    let mut findings = Vec::new();
    conduct::judge(&case, &mut findings);
    match scenario.work {
        Work::Checks => {}
        Work::Reserving(estimates) => {
            reserving::judge(&case, estimates, &mut findings);
            return findings;
        }
        Work::Slots(places) => {
            slots::judge(&case, places, &mut findings);
            return findings;
        }
    }
    if scenario.parts > 1 {
        parts::judge(&case, &mut findings);
    }
    if scenario.parts == 1 || scenario.ceiling.is_some() {
        amounts(&case, &mut findings);
        return findings;
    }
    for line in 0..scenario.parts {
        let (scenario, history) = parts::alone(&case, line);
        let case = Case::new(&scenario, &history);
        amounts(&case, &mut findings);
    }
    findings
}

/// Everything that is wrong with what was admitted.
fn amounts(case: &Case<'_>, findings: &mut Vec<Finding>) {
    conduct::judge_notice(case, findings);
    bounds::judge(case, findings);
    lower::judge(case, findings);
    ledger::judge(case, findings);
    leases::judge(case, findings);
    lenient::judge(case, findings);
    late::judge(case, findings);
}

/// How much of its limit a counter admitted at most, in hundredths: the smallest multiple of the
/// limit that bounds all of it, 100 at least.
pub fn factor(scenario: &Scenario, history: &History, counter: usize) -> u64 {
    bounds::factor(&Case::new(scenario, history), counter)
}

/// By how much a counter that nodes count for themselves was exceeded at most, and by how much it may be.
pub fn overshoot(scenario: &Scenario, history: &History, counter: usize) -> (u64, u64) {
    lenient::overshoot(&Case::new(scenario, history), counter)
}

/// A history and what it is about.
struct Case<'a> {
    scenario: &'a Scenario,
    history: &'a History,
    /// When something was decided without the store, in order.
    local: Vec<Nanos>,
}

impl<'a> Case<'a> {
    fn new(scenario: &'a Scenario, history: &'a History) -> Self {
        let records = history.records.iter();
        let local = records.filter(|r| r.is_local());
        let mut local: Vec<Nanos> = local.map(|r| r.done).collect();
        local.sort_unstable();
        Case {
            scenario,
            history,
            local,
        }
    }
}

impl Case<'_> {
    /// The decisions on one counter.
    fn of(&self, counter: usize) -> impl Iterator<Item = &Record> {
        let all = self.history.records.iter();
        let ceiling = counter == self.scenario.subjects.len();
        all.filter(move |record| ceiling || record.subject == counter)
    }

    fn counters(&self) -> std::ops::Range<usize> {
        0..self.scenario.counters()
    }

    /// Whether some node is or was lately without its store.
    fn unsettled(&self, at: Nanos) -> bool {
        let lately = |then: Nanos| then <= at && at.since(then) < Nanos::from_millis(600);
        let earlier = self.local.partition_point(|then| *then <= at);
        let local = earlier > 0 && lately(self.local[earlier - 1]);
        let changed = self.history.events.iter().any(|(then, _, event)| {
            matches!(event, Event::BreakerOpened { .. } | Event::BreakerClosed) && lately(*then)
        });
        let lines = 0..self.scenario.parts;
        let mut each =
            lines.flat_map(|line| (0..self.scenario.nodes).map(move |node| (line, node)));
        let open = each.any(|(line, node)| {
            let events = self.history.events_of(line);
            let of_breaker = events.filter(|(then, of, event)| {
                let breaker = matches!(event, Event::BreakerOpened { .. } | Event::BreakerClosed);
                breaker && *of == node && *then <= at
            });
            of_breaker
                .last()
                .is_some_and(|(_, _, e)| matches!(e, Event::BreakerOpened { .. }))
        });
        local || changed || open
    }

    /// From when on everything must be exact again.
    fn settled(&self) -> Nanos {
        let fault = self.scenario.fault;
        let wait = match fault.loses_counts() {
            // The breaker closes, the nodes put back what they remember and wait for each other.
            true => Nanos::from_millis(2_200),
            false => Nanos::from_secs(1),
        };
        // The last of its replies, and of those to pings, are late.
        let late = if fault.is_lateness() {
            Nanos::new(10 * self.budget().get())
        } else {
            Nanos::ZERO
        };
        let wait = wait.plus(late);
        // New slots wait for what all nodes have to tell.
        let told = match self.scenario.work {
            Work::Slots(_) => Nanos::from_secs(1),
            _ => Nanos::ZERO,
        };
        // From afar each of their steps takes a round trip.
        let steps = Nanos::new(8 * self.trip().get());
        self.scenario.clears.plus(wait).plus(told).plus(steps)
    }

    /// How much longer than next door there and back takes from where it is farthest.
    fn trip(&self) -> Nanos {
        let far = self.scenario.far.iter().max().copied();
        Nanos::new(2 * far.unwrap_or(Nanos::ZERO).get())
    }

    /// When nothing goes wrong and nothing is left of it, as far as there is load then.
    fn calm_bouts(&self) -> Vec<Bout> {
        let scenario = self.scenario;
        let calm = match scenario.fault {
            Fault::None => vec![(Nanos::ZERO, scenario.ends)],
            Fault::LateStore | Fault::NodeDeath | Fault::Drain => {
                vec![(self.settled(), scenario.ends)]
            }
            Fault::Drift => Vec::new(),
            _ => vec![
                (Nanos::ZERO, scenario.begins),
                (self.settled(), scenario.ends),
            ],
        };
        let bouts = scenario.bouts.iter();
        let cut = bouts.flat_map(|bout| {
            let within = |span: &Bout| (span.0.max(bout.0), span.1.min(bout.1));
            calm.iter().map(within)
        });
        cut.filter(|(from, to)| from < to).collect()
    }

    fn budget(&self) -> Nanos {
        self.scenario.budget
    }

    /// What a settlement has, whose decision was made.
    fn follow_up_budget(&self) -> Nanos {
        Settings::default().follow_up_budget
    }
}

/// Whether a decision came from the one true counter, or from what it said or gave a moment ago.
fn is_exact(record: &Record) -> bool {
    matches!(
        record.source,
        Source::Exact | Source::DenyCache | Source::Lease | Source::Lenient
    )
}
