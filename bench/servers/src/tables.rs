//! The tables and goals of the servers.

use bench_report::{Goal, Table, figure, ratio};

use crate::load::ServerConcurrency;
use crate::measure::ServerFigures;
use crate::profile::ServerProfile;
use crate::subject::TIDEGATE;

/// Functions shown of a profile: the others take less than 1% each.
const FUNCTIONS: usize = 20;

/// The figures of all servers of one protocol for one concurrency.
pub(crate) struct ProtocolResults {
    pub(crate) title: &'static str,
    pub(crate) concurrency: ServerConcurrency,
    /// The rows, whether or not the server was in the run.
    pub(crate) names: &'static [&'static str],
    /// The server to which the others are compared.
    pub(crate) reference: &'static str,
    pub(crate) figures: Vec<(&'static str, ServerFigures)>,
}

impl ProtocolResults {
    fn of(&self, name: &str) -> Option<&ServerFigures> {
        let found = self.figures.iter().find(|(whose, _)| *whose == name);
        found.map(|(_, figures)| figures)
    }

    /// Processor seconds of a server per million decisions.
    pub(crate) fn cpu(&self, name: &str) -> Option<f64> {
        self.of(name).map(|figures| figures.server_secs_per_million)
    }

    /// Tidegate's processor time as a multiple of that of `name`.
    pub(crate) fn cpu_of(&self, name: &str) -> Option<f64> {
        ratio(self.cpu(TIDEGATE), self.cpu(name))
    }

    /// Throughput and processor time of all servers.
    pub(crate) fn table(&self) -> Table {
        let compared = format!("of {}", self.reference);
        let mut table = Table::new([
            "server",
            "decisions/s",
            "CPU-s/M",
            &compared,
            "spread",
            "server busy",
            "load CPU-s/M",
            "load busy",
        ]);
        for name in self.names {
            let field = |field: fn(&ServerFigures) -> f64| figure(self.of(name).map(field));
            table.row([
                (*name).to_owned(),
                field(|f| f.per_sec),
                field(|f| f.server_secs_per_million),
                figure(ratio(self.cpu(name), self.cpu(self.reference))),
                field(|f| f.spread),
                field(ServerFigures::server_busy),
                field(|f| f.client_secs_per_million),
                field(ServerFigures::client_busy),
            ]);
        }
        table
    }

    /// Where Tidegate spends its time, function by function, in processor seconds per million decisions.
    pub(crate) fn profile_table(&self, profile: &ServerProfile) -> Table {
        let mut table = Table::new(["function", "in", "share", "CPU-s/M"]);
        for function in profile.largest(FUNCTIONS) {
            let secs = self.cpu(TIDEGATE).map(|all| all * function.share);
            table.row([
                // A bar would end the cell.
                format!("`{}`", function.symbol.replace('|', "/")),
                function.object.clone(),
                percent(function.share),
                figure(secs),
            ]);
        }
        table
    }

    /// Kernel and user time of each, side by side.
    pub(crate) fn halves(&self, profiles: &[(&str, ServerProfile)]) -> String {
        let of_one = |(name, profile): &(&str, ServerProfile)| {
            let all = self.cpu(name)?;
            let kernel = all * profile.kernel();
            Some(format!(
                "{name}: {} CPU-s/M in the kernel, {} outside it.",
                figure(Some(kernel)),
                figure(Some(all - kernel))
            ))
        };
        let lines: Vec<String> = profiles.iter().filter_map(of_one).collect();
        lines.join(" ")
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// The memory of idle connections of one protocol.
pub(crate) struct IdleResults {
    /// The protocol, as shown to a reader.
    pub(crate) protocol: &'static str,
    /// The maximum KiB per connection of ours.
    pub(crate) max_kib: f64,
    /// Servers, and resident bytes per connection.
    pub(crate) bytes: Vec<(&'static str, f64)>,
}

impl IdleResults {
    fn kib(&self, name: &str) -> Option<f64> {
        let found = self.bytes.iter().find(|(whose, _)| *whose == name);
        found.map(|(_, bytes)| bytes / 1024.0)
    }

    /// The goal of a protocol for an idle connection.
    pub(crate) fn goal(&self) -> Goal {
        let what = format!("idle connection, {}: KiB", self.protocol);
        Goal::at_most(what, self.kib(TIDEGATE), self.max_kib)
    }
}

/// KiB per idle connection, a column for each server.
pub(crate) fn idle_table(results: &[IdleResults], names: &[&'static str]) -> Table {
    let heading = [&["KiB per connection"], names].concat();
    let mut table = Table::new(heading);
    for result in results {
        let cell = |name: &&str| result.kib(name).map_or("-".to_owned(), |kib| figure(Some(kib)));
        let cells = [result.protocol.to_owned()].into_iter();
        table.row(cells.chain(names.iter().map(cell)));
    }
    table
}
