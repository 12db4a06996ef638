//! The tables and goals of the page.

use bench_load::{LoadFigures, LoadWaits};
use bench_report::{Goal, Table, figure, ratio};

use crate::alone::CountingResult;
use crate::fleet::FleetResult;
use crate::node::Counting;

/// Throughput, store calls and processor time.
pub(crate) fn full(all: &[CountingResult]) -> Table {
    let mut table = Table::new([
        "",
        "decisions/s",
        "of exact",
        "store calls",
        "server CPU-s/M",
        "client CPU-s/M",
        "server busy",
        "client busy",
        "spread",
    ]);
    for done in all {
        let field = |field: fn(&LoadFigures) -> f64| figure(Some(field(&done.figures)));
        table.row([
            done.counting.name().to_owned(),
            field(|f| f.per_sec),
            figure(of_exact(all, done.counting, |d| d.figures.per_sec)),
            fine(done.calls),
            field(|f| f.server_secs_per_million),
            field(|f| f.client_secs_per_million),
            field(LoadFigures::server_busy),
            field(LoadFigures::client_busy),
            field(|f| f.spread),
        ]);
    }
    table
}

/// Waits at a steady pace.
pub(crate) fn waits(all: &[CountingResult]) -> Table {
    let mut table = Table::new(["", "decisions/s", "p50 ms", "p99 ms", "p99.9 ms", "store calls", "client busy"]);
    for done in all {
        let wait = |field: fn(&LoadWaits) -> f64| done.figures.waits.as_ref().map(field).map(fine);
        let wait = |field| wait(field).unwrap_or_else(|| figure(None));
        table.row([
            done.counting.name().to_owned(),
            figure(Some(done.figures.per_sec)),
            wait(|w| w.p50_ms),
            wait(|w| w.p99_ms),
            wait(|w| w.p999_ms),
            fine(done.calls),
            figure(Some(done.figures.client_busy())),
        ]);
    }
    table
}

/// How well several nodes kept the limit.
pub(crate) fn shared(all: &[FleetResult]) -> Table {
    let mut table =
        Table::new(["", "of the limit", "offered", "admitted", "of ideal", "over", "may be over", "store calls"]);
    for one in all {
        let whole = |units: u64| figure(Some(units as f64));
        table.row([
            one.counting.name().to_owned(),
            format!("{:.1}", one.load),
            whole(one.offered),
            whole(one.admitted),
            format!("{:.4}", of_ideal(one)),
            one.over.to_string(),
            one.bound.to_string(),
            fine(one.calls),
        ]);
    }
    table
}

/// The goals of leased and lenient counting.
pub(crate) fn goals(
    hot: &[CountingResult],
    half: &[CountingResult],
    cold: &[CountingResult],
    shared: &[FleetResult],
) -> Vec<Goal> {
    use Counting::{Exact, Leased, Lenient};
    let p99 = |done: CountingResult| done.figures.waits.map(|waits| waits.p99_ms);
    let per_sec = of_exact(hot, Leased, |d| d.figures.per_sec);
    let calls = of(hot, Leased).map(|done| done.calls);
    let p99 = of(half, Leased).and_then(p99);
    let cold_calls = of_exact(cold, Leased, |d| d.calls);
    let cold_cpu = of_exact(cold, Leased, |d| d.figures.client_secs_per_million + d.figures.server_secs_per_million);
    let mut goals = vec![
        Goal::at_least("one hot key: leased, of exact", per_sec, 10.0),
        Goal::at_most("one hot key: store calls for a leased decision", calls, 0.05),
        Goal::below("one hot key, half load: p99 of leased, ms", p99, 1.0),
        Goal::at_most("cold keys: store calls of leased, of exact (heartbeats aside)", cold_calls, 1.001),
        Goal::at_most("cold keys: processor time of leased, of exact (noise aside)", cold_cpu, 1.05),
    ];
    for counting in [Exact, Leased] {
        let over = max_of(shared, counting, |one| one.over as f64);
        let what = format!("four nodes: {} over its limit, units", counting.name());
        goals.push(Goal::at_most(what, over, 0.0));
    }
    let beyond = max_of(shared, Lenient, |one| one.over.saturating_sub(one.bound) as f64);
    let what = "four nodes: lenient over its bound, units";
    goals.push(Goal::at_most(what, beyond, 0.0));
    let calls = max_of(shared, Leased, |one| one.calls);
    let what = "four nodes: store calls for a leased decision";
    goals.push(Goal::at_most(what, calls, 0.05));
    let missing = max_of(shared, Leased, |one| 1.0 - of_ideal(one));
    let what = "four nodes: leased, missing share of the ideal";
    goals.push(Goal::at_most(what, missing, 0.02));
    goals
}

fn of(all: &[CountingResult], counting: Counting) -> Option<CountingResult> {
    all.iter().find(|done| done.counting == counting).copied()
}

fn of_exact(all: &[CountingResult], counting: Counting, field: fn(&CountingResult) -> f64) -> Option<f64> {
    let field = |counting| of(all, counting).as_ref().map(field);
    ratio(field(counting), field(Counting::Exact))
}

fn of_ideal(one: &FleetResult) -> f64 {
    one.admitted as f64 / one.ideal as f64
}

fn max_of(shared: &[FleetResult], counting: Counting, field: fn(&FleetResult) -> f64) -> Option<f64> {
    let results = shared.iter().filter(|one| one.counting == counting);
    results.map(field).max_by(f64::total_cmp)
}

/// Small figures, for which two decimal places are too few.
fn fine(value: f64) -> String {
    format!("{value:.4}")
}
