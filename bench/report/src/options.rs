//! The options of every measurement.

use std::path::PathBuf;
use std::time::Duration;

use crate::facts::Facts;
use crate::page::Page;

/// The length of the measurement, and the folder of the page.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Short rounds and few of them: shows that everything runs, not what it costs
    #[arg(long)]
    pub quick: bool,
    /// Seconds to spend on each measured round instead of the built-in length
    #[arg(long, env = "BENCH_SECONDS", value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Folder for the page of results
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    pub results: PathBuf,
    /// The command to show on the page, for a reader who wants to repeat the run
    #[arg(long, default_value = "see bench/README.md", value_name = "TEXT")]
    pub shown_as: String,
}

impl Options {
    /// The length of one round: `seconds` if set, else `quick` or `full`.
    #[must_use]
    pub fn round(&self, quick: Duration, full: Duration) -> Duration {
        let length = self.seconds.and_then(|secs| Duration::try_from_secs_f64(secs).ok());
        length.unwrap_or(if self.quick { quick } else { full })
    }

    /// The number of rounds of each subject; full runs have at least five, for a median.
    #[must_use]
    pub fn rounds(&self) -> usize {
        if self.quick { 3 } else { 5 }
    }

    /// Opens the page of an area.
    #[must_use]
    pub fn page(&self, area: &str) -> Page {
        Page::new(area, Facts::gather(&self.shown_as))
    }
}
