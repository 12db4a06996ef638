//! The tables, the goals and the profile of the Redis page.

use bench_load::{Concurrency, LoadFigures};
use bench_report::{Goal, Table, figure, ratio};

use crate::subject::{BARE, EVALSHA, EVALSHA_RS, GUARDED, NAMES};

/// The figures of all subjects for one concurrency.
pub(crate) struct RedisResults {
    pub(crate) concurrency: Concurrency,
    /// The subjects, in the order of the figures.
    pub(crate) names: Vec<&'static str>,
    pub(crate) figures: Vec<Option<LoadFigures>>,
}

impl RedisResults {
    fn of(&self, name: &str) -> Option<LoadFigures> {
        let index = self.names.iter().position(|n| *n == name)?;
        self.figures[index]
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.of(name).map(|figures| figures.per_sec)
    }

    /// The concurrency as a heading.
    pub(crate) fn title(&self) -> String {
        let Concurrency { keys, in_flight } = self.concurrency;
        let keys = match keys {
            1 => "1 key".to_owned(),
            keys => format!("{} keys", figure(Some(keys as f64))),
        };
        format!("{keys}, {in_flight} in flight")
    }

    /// Throughput and processor time of all subjects.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new([
            "",
            "decisions/s",
            "of redis-benchmark",
            "server CPU-s/M",
            "client CPU-s/M",
            "server busy",
            "client busy",
            "spread",
        ]);
        for name in NAMES {
            let field = |field: fn(&LoadFigures) -> f64| figure(self.of(name).as_ref().map(field));
            table.row([
                name.to_owned(),
                field(|f| f.per_sec),
                figure(ratio(self.rate(name), self.rate(EVALSHA))),
                field(|f| f.server_secs_per_million),
                field(|f| f.client_secs_per_million),
                field(LoadFigures::server_busy),
                field(LoadFigures::client_busy),
                field(|f| f.spread),
            ]);
        }
        table
    }

    /// Waits at a steady pace, of the subjects that support one.
    pub(crate) fn waits_table(&self) -> Table {
        let mut table = Table::new(["", "decisions/s", "p50 ms", "p99 ms", "server CPU-s/M"]);
        for name in NAMES {
            let Some(found) = self.of(name) else { continue };
            table.row([
                name.to_owned(),
                figure(Some(found.per_sec)),
                figure(found.waits.map(|waits| waits.p50_ms)),
                figure(found.waits.map(|waits| waits.p99_ms)),
                figure(Some(found.server_secs_per_million)),
            ]);
        }
        table
    }

    /// The goal of the exact path.
    pub(crate) fn goal(&self) -> Goal {
        let of_benchmark = ratio(self.rate(BARE), self.rate(EVALSHA));
        let what = format!("{}: of the rate of redis-benchmark", self.title());
        Goal::at_least(what, of_benchmark, 0.8)
    }

    /// Where the time of a decision goes, and which side was the bottleneck.
    pub(crate) fn profile(&self) -> [String; 5] {
        let client = |name| self.of(name).map(|f| f.client_secs_per_million);
        let more = |than, name| client(name).zip(client(than)).map(|(more, less)| more - less);
        [
            self.title(),
            figure(self.of(BARE).map(|f| f.server_secs_per_million)),
            figure(client(EVALSHA_RS)),
            figure(more(EVALSHA_RS, BARE)),
            figure(more(BARE, GUARDED)),
        ]
    }

    /// Which side was the store's bottleneck, from how busy each was.
    pub(crate) fn narrow_side(&self) -> Option<String> {
        let found = self.of(BARE)?;
        let (server, client) = (found.server_busy(), found.client_busy());
        let side = match (server > BUSY, client > BUSY) {
            (true, true) => "both sides were saturated",
            (true, false) => "the server was saturated",
            (false, true) => "the client was saturated",
            (false, false) => "neither was saturated: they waited for each other or for the machine",
        };
        let percent = |share: f64| format!("{:.0}%", 100.0 * share);
        let (server, client) = (percent(server), percent(client));
        Some(format!("- {}: {side} (server {server}, client {client} of a core).", self.title()))
    }
}

/// A side that is busy for more of the time than this has little left to give; a shared machine takes the
/// rest.
const BUSY: f64 = 0.9;

/// Seconds of processor time per million decisions, part by part.
pub(crate) fn profile(results: &[RedisResults]) -> Table {
    let mut table =
        Table::new(["RedisStore, CPU-s/M", "server", "client: redis-rs", "+ Tidegate's store", "+ resilience"]);
    for one in results {
        table.row(one.profile());
    }
    table
}
