//! Counters in memory, of which the durable ones are on disk too: what a crash must not forget.
//!
//! Everything is decided by the memory store. A decision that charged a counter of a rule with
//! `durability: disk` is told when a journal has that counter on the disk; all others are told at once.
//! Keeps true: no unit that was told as charged is missing after a crash, and none is there that nobody
//! asked for. A disk that fails counts as a store that fails, for the rules that need it: those that say
//! `on_store_failure: deny` refuse, the others are decided in memory. Must be used within a tokio runtime.
//!
//! `journal` is the thread that writes, `file` what it writes to, `entry` how a counter is written; `port`
//! fills the store trait.

mod entry;
mod file;
mod journal;
mod port;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{RunId, Seed};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

pub use self::file::BadJournal;
pub use self::journal::{JournalListener, JournalNews, JournalStats, Unkept};

use self::entry::{Found, Journaled, RefundNote, is_past};
use self::file::{Batch, JournalFile, Medium, Plain};
use self::journal::Journal;
use super::memory::MemoryStore;
use crate::clock::{Clock, SystemClock};
use crate::secret::Secret;

/// Counters in memory and, the durable ones, on disk.
pub struct DiskStore<C = SystemClock> {
    memory: Arc<MemoryStore<C>>,
    journal: Journal,
    /// Of the journal: durable counts go on when a process ends.
    run: RunId,
}

/// A counter that a journal holds, for whoever knows the rules.
#[derive(Clone, Copy, Debug)]
pub struct Remembered<'a> {
    /// The rule it is of.
    pub rule: &'a RuleName,
    /// Which of the rule's rates.
    pub rate: u8,
    /// Of the limit it was made under.
    pub tag: u32,
    /// Whose it is.
    pub subject: Fingerprint,
}

/// What was found in a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Counters that go on where they were.
    pub counters: u64,
    /// Counters of rules that are no more; they stay on the disk until they are past.
    pub without_rule: u64,
}

impl<C: Clock + 'static> DiskStore<C> {
    /// Puts the counters of the journal at `path` into `memory`, or makes a journal if there is none.
    /// `limit` tells the limit that a counter has now, if its rule is still there.
    ///
    /// # Errors
    /// When the file cannot be used: it is not ours, damaged, or the system does not let us.
    pub fn open(
        path: &Path,
        secret: &Secret,
        memory: MemoryStore<C>,
        limit: impl Fn(Remembered<'_>) -> Option<Limit>,
        listener: JournalListener,
    ) -> Result<(Self, Restored), BadJournal> {
        Self::open_on(Plain, path, secret, memory, limit, listener)
    }

    fn open_on(
        medium: impl Medium,
        path: &Path,
        secret: &Secret,
        memory: MemoryStore<C>,
        limit: impl Fn(Remembered<'_>) -> Option<Limit>,
        listener: JournalListener,
    ) -> Result<(Self, Restored), BadJournal> {
        let mut file = JournalFile::open(path, &medium)?;
        let (now, unusable) = (memory.clock().now(), |error| unusable(path, &error));
        if !belongs_to(&mut file, secret, now).map_err(unusable)? {
            return Err(BadJournal::OtherSecret(path.to_owned()));
        }
        let restored = restore(&file, path, &memory, limit)?;
        drop_past(&mut file, now).map_err(unusable)?;
        let (run, memory) = (file.run(), Arc::new(memory));
        let (path, kept) = (path.to_owned(), Arc::clone(&memory));
        let journal = Journal::start(path.clone(), file, medium, kept, listener);
        let journal = journal.map_err(|source| BadJournal::System { file: path, source })?;
        let store = DiskStore {
            memory,
            journal,
            run,
        };
        Ok((store, restored))
    }

    /// The counters.
    pub fn memory(&self) -> &MemoryStore<C> {
        &self.memory
    }

    /// What the journal did.
    pub fn journal_stats(&self) -> JournalStats {
        self.journal.stats()
    }

    /// Why durable counts cannot be written at present. Names no path.
    pub fn journal_failure(&self) -> Option<Arc<str>> {
        self.journal.failure()
    }
}

/// Whether the journal at `path` holds counts that still matter: then the secret that names them must not
/// be lost.
///
/// # Errors
/// When the file cannot be used.
pub fn has_counts(path: &Path, now: Nanos) -> Result<bool, BadJournal> {
    if !path.exists() {
        return Ok(false);
    }
    let file = JournalFile::open(path, &Plain)?;
    counts(&file, now).map_err(|error| unusable(path, &error))
}

fn counts(file: &JournalFile, now: Nanos) -> Result<bool, redb::Error> {
    let mut any = false;
    file.each(|_, bytes| any |= !is_past(bytes, now))?;
    Ok(any)
}

/// Whether the counts of a journal are named by `secret`. One without counts is its own from now on.
fn belongs_to(file: &mut JournalFile, secret: &Secret, now: Nanos) -> Result<bool, redb::Error> {
    let (mark, known) = (secret.journal_mark(), file.secret_mark()?);
    if known == Some(mark) {
        return Ok(true);
    }
    if known.is_some() && counts(file, now)? {
        return Ok(false);
    }
    file.set_secret_mark(mark)?;
    Ok(true)
}

fn unusable(path: &Path, error: &redb::Error) -> BadJournal {
    BadJournal::Damaged {
        file: path.to_owned(),
        why: error.to_string(),
    }
}

/// Merges every counter that still counts into `memory`, and every refund that could be made again.
fn restore<C: Clock>(
    file: &JournalFile,
    path: &Path,
    memory: &MemoryStore<C>,
    limit: impl Fn(Remembered<'_>) -> Option<Limit>,
) -> Result<Restored, BadJournal> {
    let (now, mut restored, mut garbled) = (memory.clock().now(), Restored::default(), None);
    let read = file.each(|name, bytes| {
        if is_past(bytes, now) {
            return;
        }
        match Found::read(name, bytes) {
            Ok(found) => match seed(found, memory, &limit, now) {
                true => restored.counters += 1,
                false => restored.without_rule += 1,
            },
            Err(error) => garbled = Some(error.to_string()),
        }
    });
    let read = read.and_then(|()| {
        file.each_refund(|name, record| match RefundNote::read(name, record) {
            Ok(refund) if refund.until > now => memory.restore_refund(refund.id, refund.until, now),
            Ok(_) => {}
            Err(error) => garbled = Some(error.to_string()),
        })
    });
    let why = read.err().map(|error| error.to_string()).or(garbled);
    match why {
        None => Ok(restored),
        Some(why) => Err(BadJournal::Damaged {
            file: path.to_owned(),
            why,
        }),
    }
}

fn seed<C>(
    found: Found,
    memory: &MemoryStore<C>,
    limit: impl Fn(Remembered<'_>) -> Option<Limit>,
    now: Nanos,
) -> bool {
    let (subject, rate, rule) = (found.subject, found.rate, found.rule.clone());
    let remembered = Remembered {
        rule: &rule,
        rate,
        tag: found.counter.header.tag(),
        subject,
    };
    let Some(limit) = limit(remembered) else {
        return false;
    };
    let state = found.under(&limit, now);
    let kept = Journaled {
        subject,
        rule,
        rate,
        limit,
    };
    let seed = Seed {
        charge: kept.charge(),
        state,
    };
    memory.seed_at(&[seed], now).is_ok()
}

/// Drops what is past and gives its room back. Nobody waits yet.
fn drop_past(file: &mut JournalFile, now: Nanos) -> Result<(), redb::Error> {
    let mut past = Batch::default();
    let ended = |name: &[u8], bytes: &[u8]| is_past(bytes, now).then(|| (name.to_vec(), None));
    file.each(|name, bytes| past.counts.extend(ended(name, bytes)))?;
    file.each_refund(|name, bytes| past.refunds.extend(ended(name, bytes)))?;
    if past.counts.is_empty() && past.refunds.is_empty() {
        return Ok(());
    }
    file.write(&past, 0, |_| false)?;
    file.compact()
}
