//! The recorded counts: a file beside this one with a line for each path, its name and its instructions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::{fs, io};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/instruction_counts/record.tsv");

const HEADING: &str = "# instructions per request; see the module `instruction_counts` for how to write this file\n";

/// Instructions per request, by path.
#[derive(Default)]
pub(super) struct Record(BTreeMap<String, f64>);

impl Record {
    /// Reads the file; a missing one has no counts.
    pub(super) fn read() -> io::Result<Self> {
        match fs::read_to_string(FILE) {
            Ok(text) => Self::parse(&text).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file.
    pub(super) fn write(&self) -> io::Result<()> {
        let mut text = HEADING.to_owned();
        for (path, count) in &self.0 {
            let _ = writeln!(text, "{path}\t{count:.1}");
        }
        fs::write(FILE, text)
    }

    pub(super) fn get(&self, path: &str) -> Option<f64> {
        self.0.get(path).copied()
    }

    pub(super) fn set(&mut self, path: &str, count: f64) {
        self.0.insert(path.to_owned(), count);
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let counts = lines.map(|line| {
            let (path, count) = line.split_once('\t')?;
            Some((path.to_owned(), count.parse().ok()?))
        });
        let counts: Option<_> = counts.collect();
        let counts = counts.ok_or("a line of record.tsv is not a path, a tab and a count")?;
        Ok(Record(counts))
    }
}

#[test]
fn a_record_that_is_written_wrongly_is_an_error() {
    assert_eq!(Record::parse("# note\na path\t12.5\n").unwrap().get("a path"), Some(12.5));
    assert!(Record::parse("a path 12.5\n").is_err());
}
