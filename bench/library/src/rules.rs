//! The cost of a decision when its rule must be found among ten, and among ten thousand.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bench_report::{Goal, Table, figure, median, ratio};
use bench_subjects::{LimitadorRules, RuleRequest, RuleSubject, TidegateRules};

use crate::clock::thread_cpu_nanos;
use crate::measure::TIDEGATE;

/// Counters in use, whatever the number of rules, so that only the search for the rule differs.
const COUNTERS: usize = 10_000;

/// The number of rules, and the rules that requests hit.
const CASES: [RuleCase; 3] = [
    RuleCase { rules: 10, hit: 10, shown: "10 rules" },
    RuleCase { rules: 10_000, hit: 10, shown: "10,000 rules, 10 of them hit" },
    RuleCase { rules: 10_000, hit: 10_000, shown: "10,000 rules, all hit" },
];

struct RuleCase {
    rules: usize,
    hit: usize,
    shown: &'static str,
}

/// The nanoseconds per decision of one limiter in each case; `None` when it was not in the run.
pub(crate) struct RuleFigures {
    name: &'static str,
    nanos: Option<[f64; 3]>,
}

/// Measures every limiter that matches rules.
pub(crate) fn measure(rounds: usize, length: Duration) -> Vec<RuleFigures> {
    vec![run::<TidegateRules>(rounds, length), run::<LimitadorRules>(rounds, length)]
}

/// The table, with each case as a multiple of ten rules.
pub(crate) fn table(figures: &[RuleFigures]) -> Table {
    let names = figures.iter().flat_map(|figures| [figures.name.to_owned(), "of 10 rules".into()]);
    let mut table = Table::new(["ns per decision".to_owned()].into_iter().chain(names));
    for (index, case) in CASES.iter().enumerate() {
        let cells = figures
            .iter()
            .flat_map(|figures| [figure(figures.nanos.map(|nanos| nanos[index])), figure(figures.growth(index))]);
        table.row([case.shown.to_owned()].into_iter().chain(cells));
    }
    table
}

/// The goals for the number of rules.
pub(crate) fn goals(figures: &[RuleFigures]) -> Vec<Goal> {
    let tidegate = figures.iter().find(|figures| figures.name == TIDEGATE);
    let goal = |index: usize| {
        let growth = tidegate.and_then(|figures| figures.growth(index));
        Goal::at_most(format!("{}: of 10 rules", CASES[index].shown), growth, 1.2)
    };
    vec![goal(1), goal(2)]
}

impl RuleFigures {
    fn growth(&self, index: usize) -> Option<f64> {
        self.nanos.and_then(|nanos| ratio(Some(nanos[index]), Some(nanos[0])))
    }
}

/// The cases take turns round by round, so that a disturbance affects all alike.
fn run<R: RuleSubject>(rounds: usize, length: Duration) -> RuleFigures {
    let prepared = CASES.map(|case| (R::with_rules(case.rules), requests(&case)));
    let mut nanos = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for ((limiter, requests), nanos) in prepared.iter().zip(&mut nanos) {
            nanos.push(round(limiter, requests, length));
        }
    }
    let nanos = nanos.map(|rounds| median(&rounds).unwrap_or(f64::NAN));
    RuleFigures { name: R::NAME, nanos: Some(nanos) }
}

fn requests(case: &RuleCase) -> Vec<RuleRequest> {
    let apart = case.rules / case.hit;
    (0..COUNTERS).map(|n| RuleRequest::to_rule(n % case.hit * apart, n / case.hit)).collect()
}

/// Processor nanoseconds per decision. The clock is read about once per millisecond: a matcher that walks
/// through all rules takes milliseconds for one decision, a good one a microsecond.
fn round<R: RuleSubject>(limiter: &R, requests: &[RuleRequest], length: Duration) -> f64 {
    let probe = Instant::now();
    black_box(limiter.decide(&requests[0]));
    let once = probe.elapsed().max(Duration::from_nanos(1)).as_nanos();
    let stride = (1_000_000 / once).clamp(1, 1_000) as usize;

    let mut decisions = 0_usize;
    let mut requests = requests.iter().cycle();
    let (begun, cpu_begun) = (Instant::now(), thread_cpu_nanos());
    while begun.elapsed() < length {
        for request in requests.by_ref().take(stride) {
            black_box(limiter.decide(request));
        }
        decisions += stride;
    }
    (thread_cpu_nanos() - cpu_begun) / decisions as f64
}
