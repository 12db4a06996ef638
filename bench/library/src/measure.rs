//! Measures the subjects in every scenario, in turns.

use std::time::Duration;

use bench_report::{median, spread};
use bench_subjects::{Allowance, Governor, Harness, Key, Limitador, LimiterSubject, Throttlecrab};

use crate::keys;
use crate::scenario::{ExpectedDecisions, LibraryScenario, Threads};
use crate::timing::{DecisionTime, DynSubject, TimedRound};

/// The nanoseconds per decision of every subject in one scenario.
pub(crate) struct ScenarioRow {
    /// The conditions.
    pub(crate) scenario: LibraryScenario,
    /// One entry for each subject, in the order of [`NAMES`].
    pub(crate) cells: Vec<ScenarioCell>,
}

/// One subject in one scenario.
pub(crate) struct ScenarioCell {
    /// The subject.
    pub(crate) name: &'static str,
    /// The median of the rounds; `None` when the subject was not in the run. One thread is timed by processor
    /// time, two by wall time, because waiting for each other is part of their cost.
    pub(crate) nanos: Option<f64>,
    /// The median by wall time, to compare one thread with two.
    pub(crate) wall_nanos: Option<f64>,
    /// The spread of the rounds, relative to the median.
    pub(crate) spread: Option<f64>,
}

/// Tidegate's name, needed also when it is absent.
pub(crate) const TIDEGATE: &str = "tidegate";

/// The columns of the tables.
pub(crate) const NAMES: [&str; 5] = [Harness::NAME, TIDEGATE, Governor::NAME, Throttlecrab::NAME, Limitador::NAME];

/// Runs every scenario. Subjects with the same number of keys are filled once and used for all of them.
pub(crate) fn measure(rounds: usize, length: Duration) -> Vec<ScenarioRow> {
    let mut rows = Vec::new();
    for count in [1, 1_000, 1_000_000] {
        let keys = keys::keys(count);
        let subjects = filled(Allowance::ADMITS_ALL, &keys);
        let scenarios = LibraryScenario::all_with(count);
        rows.extend(scenarios.into_iter().map(|s| row(s, &subjects, &keys, rounds, length)));
    }
    let denied = LibraryScenario { decisions: ExpectedDecisions::Denies, ..LibraryScenario::plain(1_000) };
    let keys = keys::keys(denied.keys);
    let subjects = filled(Allowance::DENIES, &keys);
    rows.push(row(denied, &subjects, &keys, rounds, length));
    rows
}

/// A fresh instance of every subject in this build, with all keys visited.
fn filled(allowance: Allowance, keys: &[Key]) -> Vec<Box<dyn DynSubject>> {
    let subjects: Vec<Box<dyn DynSubject>> = vec![
        Box::new(Harness::new(allowance, keys.len())),
        Box::new(bench_subjects::Tidegate::new(allowance, keys.len())),
        Box::new(Governor::new(allowance, keys.len())),
        Box::new(Throttlecrab::new(allowance, keys.len())),
        Box::new(Limitador::new(allowance, keys.len())),
    ];
    subjects.iter().for_each(|subject| subject.fill(keys));
    subjects
}

/// Subjects take turns round by round, so that a disturbance affects all alike.
fn row(
    scenario: LibraryScenario,
    subjects: &[Box<dyn DynSubject>],
    keys: &[Key],
    rounds: usize,
    length: Duration,
) -> ScenarioRow {
    let orders = scenario.orders();
    let mut taken = vec![Vec::with_capacity(rounds); subjects.len()];
    for number in 0..rounds {
        let start = number as f64 / rounds as f64;
        let round = TimedRound { keys, orders: &orders, start, calls: scenario.calls, length };
        for (subject, taken) in subjects.iter().zip(&mut taken) {
            taken.push(subject.run(&round));
        }
    }
    let cell = |name| {
        let index = subjects.iter().position(|subject| subject.name() == name);
        let taken = index.map_or(&[][..], |index| &taken[index]);
        cell(name, scenario.threads, taken)
    };
    ScenarioRow { scenario, cells: NAMES.map(cell).into() }
}

fn cell(name: &'static str, threads: Threads, taken: &[DecisionTime]) -> ScenarioCell {
    let wall: Vec<f64> = taken.iter().map(|taken| taken.wall_nanos).collect();
    let cpu: Vec<f64> = taken.iter().map(|taken| taken.cpu_nanos).collect();
    let shown = if threads == Threads::One { &cpu } else { &wall };
    ScenarioCell { name, nanos: median(shown), wall_nanos: median(&wall), spread: spread(shown) }
}
