//! The tables and goals of the doors.

use bench_report::{Goal, Table, figure, ratio};

use crate::load::Crowd;
use crate::measure::Figures;
use crate::profile::Profile;
use crate::subject::TIDEGATE;

/// Functions shown of a profile: below these none takes a hundredth.
const FUNCTIONS: usize = 20;

/// One crowd at one door, and what every server there did.
pub(crate) struct Answered {
    pub(crate) title: &'static str,
    pub(crate) crowd: Crowd,
    /// The rows, whether or not the server was in the run.
    pub(crate) names: &'static [&'static str],
    /// To whom the others are compared.
    pub(crate) yardstick: &'static str,
    pub(crate) figures: Vec<(&'static str, Figures)>,
}

impl Answered {
    fn of(&self, name: &str) -> Option<&Figures> {
        let found = self.figures.iter().find(|(whose, _)| *whose == name);
        found.map(|(_, figures)| figures)
    }

    /// Processor seconds of a server for a million decisions.
    pub(crate) fn cpu(&self, name: &str) -> Option<f64> {
        self.of(name).map(|figures| figures.server_secs_per_million)
    }

    /// How much of the processor time of `name` Tidegate uses.
    pub(crate) fn cpu_of(&self, name: &str) -> Option<f64> {
        ratio(self.cpu(TIDEGATE), self.cpu(name))
    }

    /// Throughput and processor time of everyone.
    pub(crate) fn table(&self) -> Table {
        let compared = format!("of {}", self.yardstick);
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
            let part = |part: fn(&Figures) -> f64| figure(self.of(name).map(part));
            table.row([
                (*name).to_owned(),
                part(|f| f.per_sec),
                part(|f| f.server_secs_per_million),
                figure(ratio(self.cpu(name), self.cpu(self.yardstick))),
                part(|f| f.spread),
                part(Figures::server_busy),
                part(|f| f.client_secs_per_million),
                part(Figures::client_busy),
            ]);
        }
        table
    }

    /// Where Tidegate spends its time here, function by function, in processor seconds for a million.
    pub(crate) fn profile_table(&self, profile: &Profile) -> Table {
        let mut table = Table::new(["function", "in", "share", "CPU-s/M"]);
        for part in profile.largest(FUNCTIONS) {
            let secs = self.cpu(TIDEGATE).map(|all| all * part.share);
            table.row([
                // A bar would end the cell.
                format!("`{}`", part.symbol.replace('|', "/")),
                part.object.clone(),
                percent(part.share),
                figure(secs),
            ]);
        }
        table
    }

    /// Kernel and own code of each, side by side.
    pub(crate) fn halves(&self, profiles: &[(&str, Profile)]) -> String {
        let of_one = |(name, profile): &(&str, Profile)| {
            let all = self.cpu(name)?;
            let kernel = all * profile.kernel();
            Some(format!(
                "{name}: {} CPU-s/M in the kernel, {} outside it.",
                figure(Some(kernel)),
                figure(Some(all - kernel))
            ))
        };
        let told: Vec<String> = profiles.iter().filter_map(of_one).collect();
        told.join(" ")
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// What idle connections of one door take.
pub(crate) struct Idle {
    /// The door, as a reader calls it.
    pub(crate) door: &'static str,
    /// At most so many KiB for one connection of ours.
    pub(crate) most_kib: f64,
    /// Who, and resident bytes for a connection.
    pub(crate) bytes: Vec<(&'static str, f64)>,
}

impl Idle {
    fn kib(&self, name: &str) -> Option<f64> {
        let found = self.bytes.iter().find(|(whose, _)| *whose == name);
        found.map(|(_, bytes)| bytes / 1024.0)
    }

    /// What a door promises of an idle connection.
    pub(crate) fn goal(&self) -> Goal {
        let what = format!("idle connection, {}: KiB", self.door);
        Goal::at_most(what, self.kib(TIDEGATE), self.most_kib)
    }
}

/// KiB for an idle connection, a column for each server.
pub(crate) fn idle_table(doors: &[Idle], names: &[&'static str]) -> Table {
    let heading = [&["KiB for a connection"], names].concat();
    let mut table = Table::new(heading);
    for door in doors {
        let cell = |name: &&str| {
            door.kib(name)
                .map_or("-".to_owned(), |kib| figure(Some(kib)))
        };
        let cells = [door.door.to_owned()].into_iter();
        table.row(cells.chain(names.iter().map(cell)));
    }
    table
}
