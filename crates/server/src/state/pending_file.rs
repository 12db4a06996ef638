//! Pending charges on disk: admitted by this node and not charged to the shared store yet.
//!
//! The file is written about every 10 ms while the pending charges change, and at the end. So a restart during an outage
//! does not get a fresh share, and everything is charged when the store is back. The file is replaced as a whole.
//! It is not fsynced, because it must survive the process, not the machine. Counters are named by the secret of the
//! store: charges that were counted under another secret are useless.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate::resilience::{PendingLimit, PendingUnits};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

/// The first line: file type and format version.
const TITLE: &str = "tidegate pending 2";
/// The old format, without limits. It is read, but no longer written.
const TITLE_WITHOUT_LIMITS: &str = "tidegate pending 1";

/// The file of pending charges.
#[derive(Debug)]
pub(crate) struct PendingFile {
    path: PathBuf,
}

/// The text is not a list of pending charges.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of pending charges; it is written anew")]
pub(crate) struct PendingFileError;

impl PendingFile {
    /// The file in `folder`, which only this process uses.
    pub(crate) fn new(folder: &Path) -> Self {
        PendingFile { path: folder.join("pending") }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The charges that were pending when the file was last written.
    pub(crate) fn read(&self) -> io::Result<Vec<PendingUnits>> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        let text = str::from_utf8(&bytes).ok();
        let pending = text.and_then(parse);
        pending.ok_or_else(|| io::Error::other(PendingFileError))
    }

    pub(crate) fn write(&self, pending: &[PendingUnits]) -> io::Result<()> {
        let next = self.path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(render(pending).as_bytes())?;
        fs::rename(next, &self.path)
    }
}

/// The title, the number of lines, and one line for each charge: subject, rate, tag of its limit, units, time, the
/// limit (algorithm, count, window, capacity), and the rule, whose name may contain anything but a line break.
fn render(pending: &[PendingUnits]) -> String {
    let mut text = format!("{TITLE}\n{}\n", pending.len());
    for p in pending {
        let subject = p.subject.bits();
        let line = format!(
            "{subject:032x} {} {:08x} {} {} {} {} {} {} {}\n",
            p.rate,
            p.limit.tag,
            p.units,
            p.at.get(),
            p.limit.algorithm,
            p.limit.count,
            p.limit.per.get(),
            p.limit.capacity,
            p.rule.as_str()
        );
        text.push_str(&line);
    }
    text
}

fn parse(text: &str) -> Option<Vec<PendingUnits>> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let format = match lines.next()? {
        TITLE => PendingFileFormat::WithLimits,
        TITLE_WITHOUT_LIMITS => PendingFileFormat::WithoutLimits,
        _ => return None,
    };
    let count: usize = lines.next()?.parse().ok()?;
    let parsed = lines.map(|line| parse_line(line, format));
    let pending: Vec<PendingUnits> = parsed.collect::<Option<_>>()?;
    (pending.len() == count).then_some(pending)
}

/// The format of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingFileFormat {
    WithLimits,
    WithoutLimits,
}

fn parse_line(line: &str, format: PendingFileFormat) -> Option<PendingUnits> {
    let mut fields = match format {
        PendingFileFormat::WithLimits => line.splitn(10, ' '),
        PendingFileFormat::WithoutLimits => line.splitn(6, ' '),
    };
    let subject = fields.next().filter(|word| word.len() == 32)?;
    let subject = u128::from_str_radix(subject, 16).ok()?;
    let rate = fields.next()?.parse().ok()?;
    let tag = u32::from_str_radix(fields.next()?, 16).ok()?;
    let units = fields.next()?.parse().ok()?;
    let at = Nanos::new(fields.next()?.parse().ok()?);
    // A limit with a count of 0 does not compile.
    let mut limit = PendingLimit { tag, algorithm: Algorithm::FixedWindow, count: 0, per: Nanos::ZERO, capacity: 0 };
    if format == PendingFileFormat::WithLimits {
        limit.algorithm = Algorithm::from_name(fields.next()?)?;
        limit.count = fields.next()?.parse().ok()?;
        limit.per = Nanos::new(fields.next()?.parse().ok()?);
        limit.capacity = fields.next()?.parse().ok()?;
    }
    Some(PendingUnits {
        subject: Fingerprint::new(subject),
        rate,
        limit,
        units,
        at,
        rule: RuleName::new(fields.next().filter(|name| !name.is_empty())?),
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
            limit: PendingLimit {
                tag: 0xbeef,
                algorithm: Algorithm::TokenBucket,
                count: 10,
                per: Nanos::from_secs(60),
                capacity: 15,
            },
            units: 7,
            at: Nanos::from_secs(1_700_000_000),
        };
        vec![of(u128::MAX, "login"), of(5, "a rule with spaces")]
    }

    #[test]
    fn pending_charges_survive_a_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let file = PendingFile::new(dir.path());
        assert_eq!(file.read().unwrap(), []);
        file.write(&pending()).unwrap();
        assert_eq!(file.read().unwrap(), pending());
        file.write(&[]).unwrap();
        assert_eq!(file.read().unwrap(), []);
    }

    /// As the previous version wrote it: the limit is that of the rule.
    #[test]
    fn the_old_format_without_limits_is_read() {
        let text = format!("tidegate pending 1\n1\n{:032x} 1 0000beef 7 99 a rule\n", 5);
        let [of] = &parse(&text).unwrap()[..] else {
            panic!("one");
        };
        assert_eq!((of.rule.as_str(), of.units, of.rate), ("a rule", 7, 1));
        assert_eq!(of.limit.tag, 0xbeef);
        assert_eq!(of.limit.compile(), None);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_and_no_charge() {
        let text = render(&pending());
        assert_eq!(parse(&text), Some(pending()));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        assert_eq!(parse(&text.replace("pending 2", "pending 3")), None);
        assert_eq!(parse(&text.replace("\n2\n", "\n3\n")), None);
        let dir = tempfile::tempdir().unwrap();
        let file = PendingFile::new(dir.path());
        fs::write(file.path(), [0xff, 0xfe, b'\n']).unwrap();
        assert!(file.read().is_err());
    }
}
