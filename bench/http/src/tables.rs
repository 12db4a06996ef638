//! The tables and goals of the HTTP check.

use bench_report::{Goal, Table, figure, ratio};

use crate::measure::{HttpFigures, decisions_per_sec};
use crate::target::{BARE, THROTTLECRAB, TIDEGATE};

/// The rows of every table, whether or not the server was in the run.
const NAMES: [&str; 3] = [BARE, TIDEGATE, THROTTLECRAB];

/// The figures of all servers in the run for one kind of request.
pub(crate) struct HttpResults {
    /// The servers, in the order of the figures.
    pub(crate) names: Vec<&'static str>,
    /// Their figures; `None` where a server does not support the kind.
    pub(crate) figures: Vec<Option<HttpFigures>>,
}

impl HttpResults {
    fn of(&self, name: &str) -> Option<HttpFigures> {
        let index = self.names.iter().position(|n| *n == name)?;
        self.figures[index]
    }

    fn cpu(&self, name: &str) -> Option<f64> {
        self.of(name).map(|figures| figures.cpu_secs_per_million)
    }

    /// Throughput, waits and processor time of every server.
    pub(crate) fn table(&self) -> Table {
        let heading = ["server", "requests/s", "p50 ms", "p99 ms", "CPU-s/M", "of bare hyper"];
        let mut table = Table::new(heading);
        for name in NAMES {
            let field = |field: fn(HttpFigures) -> f64| figure(self.of(name).map(field));
            table.row([
                name.to_owned(),
                field(|f| f.requests_per_sec),
                field(|f| f.p50_ms),
                field(|f| f.p99_ms),
                field(|f| f.cpu_secs_per_million),
                figure(ratio(self.cpu(name), self.cpu(BARE))),
            ]);
        }
        table
    }

    /// The same for requests with many checks.
    pub(crate) fn batch_table(&self) -> Table {
        let mut table = Table::new(["server", "decisions/s", "p50 ms", "p99 ms", "CPU-s/M requests"]);
        for name in NAMES.into_iter().filter(|name| *name != THROTTLECRAB) {
            let field = |field: fn(HttpFigures) -> f64| figure(self.of(name).map(field));
            table.row([
                name.to_owned(),
                figure(decisions_per_sec(self.of(name))),
                field(|f| f.p50_ms),
                field(|f| f.p99_ms),
                field(|f| f.cpu_secs_per_million),
            ]);
        }
        table
    }
}

/// The goals of the HTTP edge.
pub(crate) fn goals(
    admitted: &HttpResults,
    denied: &HttpResults,
    half: &HttpResults,
    batch: &HttpResults,
) -> Vec<Goal> {
    let cpu = |results: &HttpResults, to| ratio(results.cpu(TIDEGATE), results.cpu(to));
    let p99 = half.of(TIDEGATE).map(|figures| figures.p99_ms);
    let decisions = decisions_per_sec(batch.of(TIDEGATE));
    vec![
        Goal::at_most("admitted: CPU of bare hyper", cpu(admitted, BARE), 1.15),
        Goal::at_most("denied: CPU of bare hyper", cpu(denied, BARE), 1.3),
        Goal::below("admitted: CPU of throttlecrab-server", cpu(admitted, THROTTLECRAB), 1.0),
        Goal::below("denied: CPU of throttlecrab-server", cpu(denied, THROTTLECRAB), 1.0),
        Goal::below("p99 at half load, ms", p99, 1.0),
        Goal::at_least("decisions/s in batches of 100", decisions, 500_000.0),
    ]
}
