//! The recorded counts to which a run is compared: one line for each case, name and count.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// Recorded instructions per decision, by case.
pub(crate) struct Baseline(BTreeMap<String, f64>);

impl Baseline {
    /// Reads the file; a missing file has no counts.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Baseline(BTreeMap::new())),
            Err(error) => Err(error),
        }
    }

    /// Writes the counts of the cases that ran.
    pub(crate) fn write(path: &Path, counted: &[(String, Option<f64>)]) -> io::Result<()> {
        let mut text = String::from("# instructions per decision; made by `bench/run --record instructions`\n");
        for (case, count) in counted {
            if let Some(count) = count {
                let _ = writeln!(text, "{case}\t{count:.1}");
            }
        }
        fs::write(path, text)
    }

    /// The recorded count of a case.
    pub(crate) fn of(&self, case: &str) -> Option<f64> {
        self.0.get(case).copied()
    }
}

fn parse(text: &str) -> io::Result<Baseline> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entries = lines.map(|line| {
        let entry = line.split_once('\t').and_then(|(case, count)| Some((case.to_owned(), count.parse().ok()?)));
        entry.ok_or_else(|| io::Error::other(format!("baseline: `{line}` is not a case, a tab and a count")))
    });
    entries.collect::<io::Result<_>>().map(Baseline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_case_a_tab_and_a_count() {
        let baseline = parse("# a remark\ngovernor by 16\t210.5\n").unwrap();
        assert_eq!(baseline.of("governor by 16"), Some(210.5));
        assert_eq!(baseline.of("governor"), None);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        assert!(parse("governor 210\n").is_err());
    }
}
