//! The tables and goals of the library.

use bench_report::{Goal, Table, figure, ratio};
use bench_subjects::{Governor, Harness, Limitador, LimiterSubject};

use crate::keys::Pattern;
use crate::measure::{NAMES, ScenarioCell, ScenarioRow, TIDEGATE};
use crate::scenario::{LibraryScenario, Threads};
use crate::timing::CallStyle;

/// The figures, by scenario and subject.
pub(crate) struct LibraryTables<'a>(pub(crate) &'a [ScenarioRow]);

impl LibraryTables<'_> {
    fn cell(&self, scenario: LibraryScenario, name: &str) -> Option<&ScenarioCell> {
        let row = self.0.iter().find(|row| row.scenario == scenario)?;
        row.cells.iter().find(|cell| cell.name == name)
    }

    /// Nanoseconds per decision, everything included.
    fn gross(&self, scenario: LibraryScenario, name: &str) -> Option<f64> {
        self.cell(scenario, name)?.nanos
    }

    /// Nanoseconds per decision without the time of the harness alone.
    fn net(&self, scenario: LibraryScenario, name: &str) -> Option<f64> {
        let harness = self.gross(scenario, Harness::NAME)?;
        Some((self.gross(scenario, name)? - harness).max(0.0))
    }

    fn net_ratio(&self, scenario: LibraryScenario, name: &str, to: &str) -> Option<f64> {
        ratio(self.net(scenario, name), self.net(scenario, to))
    }

    /// How many more decisions two threads make than one, on keys of their own.
    fn scaling(&self, keys: usize, name: &str) -> Option<f64> {
        let one = LibraryScenario::plain(keys);
        let two = LibraryScenario { threads: Threads::TwoOnDifferentKeys, ..one };
        let wall = |scenario| self.cell(scenario, name).and_then(|cell| cell.wall_nanos);
        ratio(wall(one).map(|nanos| 2.0 * nanos), wall(two))
    }

    /// Nanoseconds per decision of every subject; with the largest spread of the row.
    pub(crate) fn times(&self) -> Table {
        let heading = ["ns per decision"].into_iter().chain(NAMES).chain(["spread"]);
        let mut table = Table::new(heading);
        for row in self.0 {
            let nanos = row.cells.iter().map(|cell| figure(cell.nanos));
            let spread = row.cells.iter().filter_map(|cell| cell.spread).fold(0.0, f64::max);
            let spread = format!("{:.0}%", 100.0 * spread);
            table.row([row.scenario.to_string()].into_iter().chain(nanos).chain([spread]));
        }
        table
    }

    /// The same, net of the harness, as multiples of governor.
    pub(crate) fn ratios(&self) -> Table {
        let others = NAMES.iter().filter(|name| ![Harness::NAME, Governor::NAME].contains(name));
        let others: Vec<_> = others.copied().collect();
        let heading = ["net, governor = 1"].into_iter().chain(others.iter().copied());
        let mut table = Table::new(heading);
        for ScenarioRow { scenario, .. } in self.0 {
            let ratios = others.iter().map(|name| self.net_ratio(*scenario, name, Governor::NAME));
            table.row([scenario.to_string()].into_iter().chain(ratios.map(figure)));
        }
        table
    }

    /// Decisions of two threads on keys of their own, as a multiple of one thread's.
    pub(crate) fn scalings(&self) -> Table {
        let mut table = Table::new(["two threads over one"].into_iter().chain(NAMES));
        for (keys, shown) in [(1_000, "1k keys"), (1_000_000, "1M keys")] {
            let scalings = NAMES.map(|name| figure(self.scaling(keys, name)));
            table.row([shown.to_owned()].into_iter().chain(scalings));
        }
        table
    }

    /// The goals of the library.
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let to_governor = |scenario| self.net_ratio(scenario, TIDEGATE, Governor::NAME);
        let to_limitador = |keys| self.net_ratio(LibraryScenario::plain(keys), TIDEGATE, Limitador::NAME);
        let by_16 = |keys| LibraryScenario { calls: CallStyle::Batches, ..LibraryScenario::plain(keys) };
        let million = LibraryScenario::plain(1_000_000);
        let zipf = LibraryScenario { pattern: Pattern::Zipf, ..million };
        vec![
            Goal::at_most("1M keys, uniform: of governor, net", to_governor(million), 0.5),
            Goal::at_most("1M keys, Zipf: of governor, net", to_governor(zipf), 0.5),
            Goal::at_most("1 key: of governor, net", to_governor(LibraryScenario::plain(1)), 1.0),
            Goal::at_most("1k keys: of governor, net", to_governor(LibraryScenario::plain(1_000)), 1.0),
            Goal::at_most("1 key by 16: of governor, net", to_governor(by_16(1)), 0.5),
            Goal::at_most("1k keys by 16: of governor, net", to_governor(by_16(1_000)), 0.5),
            Goal::at_most("1 key: of limitador, net", to_limitador(1), 0.1),
            Goal::at_most("1k keys: of limitador, net", to_limitador(1_000), 0.1),
            Goal::at_most("1M keys: of limitador, net", to_limitador(1_000_000), 0.1),
            Goal::at_least("1k keys: 2 threads apart over 1", self.scaling(1_000, TIDEGATE), 1.8),
            Goal::at_least("1M keys: 2 threads apart over 1", self.scaling(1_000_000, TIDEGATE), 1.8),
        ]
    }
}
