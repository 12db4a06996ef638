//! What this node has admitted without the shared store, on disk: charges that are pending or still count toward its
//! shares, and permits.
//!
//! The file is written about every 10 ms while it changes, and at the end. So a restart does not bring a fresh share,
//! in an outage or before the next one, and everything is charged when the store is back. The file is replaced as a
//! whole. It is not fsynced, because it must survive the process, not the machine. Counters are named by the secret of
//! the store: charges that were counted under another secret are useless.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tidegate::resilience::{LocalAdmissions, LocalPermit, PendingLimit, PendingUnits, PermitSync};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use crate::state::data_dir::{self, FileSync};

/// The first line: file type and format version.
const TITLE: &str = "tidegate pending 3";
/// The file of local admissions.
#[derive(Debug)]
pub(crate) struct LocalAdmissionsFile {
    path: PathBuf,
    /// Locked while the file is written. Two writes at the same time would mix in the temporary file.
    writing: Mutex<()>,
}

impl LocalAdmissionsFile {
    /// The file in `folder`, which only this process uses.
    pub(crate) fn new(folder: &Path) -> Self {
        LocalAdmissionsFile { path: folder.join("pending"), writing: Mutex::new(()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What had been admitted when the file was last written.
    pub(crate) fn read(&self) -> io::Result<LocalAdmissions> {
        let invalid = "not a list of pending charges; it is written anew";
        Ok(data_dir::read_parsed(&self.path, parse, invalid)?.unwrap_or_default())
    }

    /// Writes what `admissions` returns. It is called when no other write runs, so the last write has the newest state.
    pub(crate) fn write(&self, admissions: impl FnOnce() -> LocalAdmissions) -> io::Result<()> {
        let _writing = self.writing.lock();
        data_dir::replace(&self.path, &render(&admissions()), FileSync::Skip)
    }
}

/// The title; the numbers of counters and permits, and whether the store was away; and one line for each of them. Of a counter: subject, rate, tag of
/// its limit, pending units, their time, the limit (algorithm, count, window, capacity), units that count toward the
/// share, their time. Of a permit: subject, holder, expiry, what the store knows. At the end of a line is the rule, whose
/// name may contain anything but a line break.
fn render(admissions: &LocalAdmissions) -> String {
    let LocalAdmissions { units, permits, without_store } = admissions;
    let mut text = format!("{TITLE}\n{} {} {}\n", units.len(), permits.len(), u8::from(*without_store));
    for p in units {
        let line = format!(
            "{:032x} {} {:08x} {} {} {} {} {} {} {} {} {}\n",
            p.subject.bits(),
            p.rate,
            p.limit.tag,
            p.units,
            p.at.get(),
            p.limit.algorithm,
            p.limit.count,
            p.limit.per.get(),
            p.limit.capacity,
            p.shared,
            p.shared_at.get(),
            p.rule.as_str()
        );
        text.push_str(&line);
    }
    for p in permits {
        let sync = SYNC_WORDS.iter().find(|(_, sync)| *sync == p.sync).map_or("", |(word, _)| word);
        let (subject, rule) = (p.subject.bits(), p.rule.as_str());
        text.push_str(&format!("{subject:032x} {:032x} {} {sync} {rule}\n", p.holder, p.until.get()));
    }
    text
}

/// What the store knows of a permit, as it is written.
const SYNC_WORDS: [(&str, PermitSync); 3] =
    [("synced", PermitSync::Synced), ("local", PermitSync::LocalOnly), ("releasing", PermitSync::Releasing)];

fn parse(text: &str) -> Option<LocalAdmissions> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != TITLE {
        return None;
    }
    let counts: Vec<usize> = lines.next()?.split(' ').map(|count| count.parse().ok()).collect::<Option<_>>()?;
    let [units, permits, without_store @ 0..=1] = counts[..] else {
        return None;
    };
    let lines: Vec<&str> = lines.collect();
    if lines.len() != units.checked_add(permits)? {
        return None;
    }
    let (units, permits) = lines.split_at(units);
    Some(LocalAdmissions {
        units: units.iter().map(|line| parse_units(line)).collect::<Option<_>>()?,
        permits: permits.iter().map(|line| parse_permit(line)).collect::<Option<_>>()?,
        without_store: without_store == 1,
    })
}

fn parse_units(line: &str) -> Option<PendingUnits> {
    let fields: [&str; 12] = line.splitn(12, ' ').collect::<Vec<_>>().try_into().ok()?;
    let [subject, rate, tag, units, at, algorithm, count, per, capacity, shared, shared_at, rule] = fields;
    let limit = PendingLimit {
        tag: u32::from_str_radix(tag, 16).ok()?,
        algorithm: Algorithm::from_name(algorithm)?,
        count: count.parse().ok()?,
        per: parse_nanos(per)?,
        capacity: capacity.parse().ok()?,
    };
    Some(PendingUnits {
        subject: Fingerprint::new(parse_bits(subject)?),
        rule: parse_rule(rule)?,
        rate: rate.parse().ok()?,
        limit,
        units: units.parse().ok()?,
        at: parse_nanos(at)?,
        shared: shared.parse().ok()?,
        shared_at: parse_nanos(shared_at)?,
    })
}

fn parse_permit(line: &str) -> Option<LocalPermit> {
    let fields: [&str; 5] = line.splitn(5, ' ').collect::<Vec<_>>().try_into().ok()?;
    let [subject, holder, until, word, rule] = fields;
    Some(LocalPermit {
        subject: Fingerprint::new(parse_bits(subject)?),
        rule: parse_rule(rule)?,
        holder: parse_bits(holder)?,
        until: parse_nanos(until)?,
        sync: SYNC_WORDS.iter().find(|(known, _)| *known == word)?.1,
    })
}

fn parse_nanos(word: &str) -> Option<Nanos> {
    word.parse().ok().map(Nanos::new)
}

fn parse_bits(word: &str) -> Option<u128> {
    u128::from_str_radix(Some(word).filter(|word| word.len() == 32)?, 16).ok()
}

fn parse_rule(name: &str) -> Option<RuleName> {
    (!name.is_empty()).then(|| RuleName::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admissions() -> LocalAdmissions {
        let of = |subject, rule, shared| PendingUnits {
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
            shared,
            shared_at: Nanos::from_secs(1_699_999_999),
        };
        let permit = |holder, sync| LocalPermit {
            subject: Fingerprint::new(7),
            rule: RuleName::new("a rule with spaces"),
            holder,
            until: Nanos::from_secs(1_700_000_010),
            sync,
        };
        let syncs = [PermitSync::Synced, PermitSync::LocalOnly, PermitSync::Releasing];
        LocalAdmissions {
            units: vec![of(u128::MAX, "login", 7), of(5, "a rule with spaces", 9)],
            permits: (0..).zip(syncs).map(|(holder, sync)| permit(holder, sync)).collect(),
            without_store: true,
        }
    }

    #[test]
    fn local_admissions_survive_a_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let file = LocalAdmissionsFile::new(dir.path());
        assert_eq!(file.read().unwrap(), LocalAdmissions::default());
        file.write(admissions).unwrap();
        assert_eq!(file.read().unwrap(), admissions());
        file.write(LocalAdmissions::default).unwrap();
        assert_eq!(file.read().unwrap(), LocalAdmissions::default());
    }

    /// At the end of the process the last write ran beside that of the task, and one became the tail of the other.
    #[test]
    fn writes_at_the_same_time_leave_a_complete_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = LocalAdmissionsFile::new(dir.path());
        let long = LocalAdmissions { units: vec![admissions().units[0].clone(); 2_000], ..admissions() };
        std::thread::scope(|scope| {
            for admissions in [long, admissions()] {
                let file = &file;
                scope.spawn(move || {
                    for _ in 0..200 {
                        file.write(|| admissions.clone()).unwrap();
                        file.read().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_and_no_charge() {
        let text = render(&admissions());
        assert_eq!(parse(&text), Some(admissions()));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end}");
        }
        assert_eq!(parse(&text.replace("pending 3", "pending 2")), None);
        for counts in ["3 3 1", "2 2 1", "3 2 1", "2 3 2", "2 3", "5"] {
            assert_eq!(parse(&text.replace("\n2 3 1\n", &format!("\n{counts}\n"))), None, "{counts}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = LocalAdmissionsFile::new(dir.path());
        std::fs::write(file.path(), [0xff, 0xfe, b'\n']).unwrap();
        assert!(file.read().is_err());
    }
}
