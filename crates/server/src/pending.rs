//! The charges that are pending, on disk: admitted by this node and not charged to the shared store yet.
//!
//! Written every 100 ms while there are any, and at the end. So a restart inside an outage gives no fresh
//! share, and everything is charged when the store is back. The file is replaced as a whole; it is not forced
//! to the disk, because it is to survive the process, not the machine. Counters are named by the secret of the
//! store, so the file holds its check: what was counted under another secret is of no use.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate::resilience::PendingUnits;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

/// The first line: what this is, and in which form.
const TITLE: &str = "tidegate pending 1";

/// The place of pending charges on disk.
#[derive(Debug)]
pub(crate) struct PendingFile {
    path: PathBuf,
}

/// Text that is no list of pending charges.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of pending charges; it is written anew")]
pub(crate) struct PendingFileError;

impl PendingFile {
    /// In a folder that only this process uses.
    pub(crate) fn new(folder: &Path) -> Self {
        PendingFile {
            path: folder.join("pending"),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was pending when the file was last written.
    pub(crate) fn read(&self) -> io::Result<Vec<PendingUnits>> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        let text = str::from_utf8(&bytes).ok();
        let pending = text.and_then(parse);
        pending.ok_or_else(|| io::Error::other(PendingFileError))
    }

    /// Replaces the file.
    pub(crate) fn write(&self, pending: &[PendingUnits]) -> io::Result<()> {
        let next = self.path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(format(pending).as_bytes())?;
        fs::rename(next, &self.path)
    }
}

/// The title, how many there are, and each: subject, rate, tag, units, time, and the rule, whose name may hold
/// anything but a line break.
fn format(pending: &[PendingUnits]) -> String {
    let mut text = format!("{TITLE}\n{}\n", pending.len());
    for p in pending {
        let subject = p.subject.bits();
        let line = format!(
            "{subject:032x} {} {:08x} {} {} {}\n",
            p.rate,
            p.tag,
            p.units,
            p.at.get(),
            p.rule.as_str()
        );
        text.push_str(&line);
    }
    text
}

fn parse(text: &str) -> Option<Vec<PendingUnits>> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let titled = lines.next()? == TITLE;
    let count: usize = lines.next()?.parse().ok()?;
    let pending: Vec<PendingUnits> = lines.map(parse_line).collect::<Option<_>>()?;
    (titled && pending.len() == count).then_some(pending)
}

fn parse_line(line: &str) -> Option<PendingUnits> {
    let mut words = line.splitn(6, ' ');
    let subject = words.next().filter(|word| word.len() == 32)?;
    let subject = u128::from_str_radix(subject, 16).ok()?;
    Some(PendingUnits {
        subject: Fingerprint::new(subject),
        rate: words.next()?.parse().ok()?,
        tag: u32::from_str_radix(words.next()?, 16).ok()?,
        units: words.next()?.parse().ok()?,
        at: Nanos::new(words.next()?.parse().ok()?),
        rule: RuleName::new(words.next().filter(|name| !name.is_empty())?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Vec<PendingUnits> {
        let of = |subject, rule| PendingUnits {
            subject: Fingerprint::new(subject),
            rule: RuleName::new(rule),
            rate: 1,
            tag: 0xbeef,
            units: 7,
            at: Nanos::from_secs(1_700_000_000),
        };
        vec![of(u128::MAX, "login"), of(5, "a rule with spaces")]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = PendingFile::new(dir.path());
        assert_eq!(file.read().unwrap(), []);
        file.write(&pending()).unwrap();
        assert_eq!(file.read().unwrap(), pending());
        file.write(&[]).unwrap();
        assert_eq!(file.read().unwrap(), []);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_and_no_charge() {
        let text = format(&pending());
        assert_eq!(parse(&text), Some(pending()));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        assert_eq!(parse(&text.replace("pending 1", "pending 2")), None);
        assert_eq!(parse(&text.replace("\n2\n", "\n3\n")), None);
        let dir = tempfile::tempdir().unwrap();
        let file = PendingFile::new(dir.path());
        fs::write(file.path(), [0xff, 0xfe, b'\n']).unwrap();
        assert!(file.read().is_err());
    }
}
