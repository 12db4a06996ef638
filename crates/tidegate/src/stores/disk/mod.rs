//! Counters in memory, of which the durable ones are also on disk and survive a crash.
//!
//! The memory store makes all decisions. A decision that charged a counter of a rule with `durability: disk` is
//! returned when a journal has that counter on the disk; all others are returned at once. Invariant: no unit that was
//! reported as charged is missing after a crash, and no unit is there that was not requested. A failing disk counts as
//! a failing store, for the rules that need it: rules with `on_store_failure: deny` deny, the others are decided in
//! memory. Must be used within a tokio runtime.
//!
//! `journal` is the thread that writes, `file` the database it writes to, `entry` the encoding of a counter; `port`
//! implements the store trait.

mod entry;
mod file;
mod journal;
mod port;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Restore, RunId};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;
use tidegate_rules::RuleSet;

pub use self::file::JournalOpenError;
pub use self::journal::{JournalError, JournalEvent, JournalListener, JournalStats};

use self::entry::{JournalRecord, JournaledCounter, is_expired, read_refund};
use self::file::{Batch, FileStorage, JournalFile, StorageFactory};
use self::journal::Journal;
use super::memory::MemoryStore;
use crate::clock::{Clock, SystemClock};
use crate::secret::Secret;

/// Counters in memory, of which the durable ones are also on disk.
pub struct DiskStore<C = SystemClock> {
    memory: Arc<MemoryStore<C>>,
    journal: Journal,
    /// The run of the journal: durable counts outlive a process.
    run: RunId,
}

impl<C> fmt::Debug for DiskStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore").finish_non_exhaustive()
    }
}

/// Identifies a counter in a journal, for a lookup of its limit in the rules.
#[derive(Clone, Copy, Debug)]
pub struct JournalCounterId<'a> {
    /// Its rule.
    pub rule: &'a RuleName,
    /// The index of the rate in the rule.
    pub rate: u8,
    /// The tag of the limit it was made under.
    pub tag: u32,
    /// Its subject.
    pub subject: Fingerprint,
}

impl JournalCounterId<'_> {
    /// The limit of the counter under `rules`: the limit with which it was counted if the rule still has it, else the
    /// rule's default limit.
    pub fn limit_under(&self, rules: &RuleSet) -> Option<Limit> {
        let rule = rules.rule(self.rule.as_str())?;
        let current_limit = || {
            let limits = rule.limits(None, "");
            limits.get(usize::from(self.rate)).or(limits.last())
        };
        let limit = rule.limit_with_tag(self.rate.into(), self.tag).or_else(current_limit)?;
        Some(limit.for_subject(self.subject.seed()))
    }
}

/// The counters found in a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Counters that continue where they were.
    pub counters: u64,
    /// Counters of rules that no longer exist; they stay on the disk until they expire.
    pub without_rule: u64,
}

impl<C: Clock + 'static> DiskStore<C> {
    /// Restores the counters of the journal at `path` in `memory`, or creates a journal if there is none. `limit`
    /// returns the limit that a counter has now, if its rule still exists.
    ///
    /// # Errors
    /// When the file cannot be used: it is not a journal, damaged, or not accessible.
    pub fn open(
        path: &Path,
        secret: &Secret,
        memory: MemoryStore<C>,
        limit: impl Fn(JournalCounterId<'_>) -> Option<Limit>,
        listener: JournalListener,
    ) -> Result<(Self, Restored), JournalOpenError> {
        Self::open_on(FileStorage, path, secret, memory, limit, listener)
    }

    fn open_on(
        medium: impl StorageFactory,
        path: &Path,
        secret: &Secret,
        memory: MemoryStore<C>,
        limit: impl Fn(JournalCounterId<'_>) -> Option<Limit>,
        listener: JournalListener,
    ) -> Result<(Self, Restored), JournalOpenError> {
        let mut file = JournalFile::open(path, &medium)?;
        let (now, unusable) = (memory.clock().now(), |error| unusable(path, &error));
        if !belongs_to(&mut file, secret, now).map_err(unusable)? {
            return Err(JournalOpenError::OtherSecret(path.to_owned()));
        }
        let restored = restore(&file, path, &memory, limit)?;
        drop_expired(&mut file, now).map_err(unusable)?;
        let (run, memory) = (file.run(), Arc::new(memory));
        let (path, counters) = (path.to_owned(), Arc::clone(&memory));
        let journal = Journal::start(path.clone(), file, medium, counters, listener);
        let journal = journal.map_err(|source| JournalOpenError::System { file: path, source })?;
        let store = DiskStore { memory, journal, run };
        Ok((store, restored))
    }

    /// The memory store.
    pub fn memory(&self) -> &MemoryStore<C> {
        &self.memory
    }

    /// The figures of the journal.
    pub fn journal_stats(&self) -> JournalStats {
        self.journal.stats()
    }

    /// Why durable counts cannot be written now. Contains no path.
    pub fn journal_failure(&self) -> Option<Arc<str>> {
        self.journal.failure()
    }
}

/// Whether the journal at `path` holds counts that have not expired: then the secret that names them must not be lost.
///
/// # Errors
/// When the file cannot be used.
pub fn has_counts(path: &Path, now: Nanos) -> Result<bool, JournalOpenError> {
    if !path.exists() {
        return Ok(false);
    }
    let file = JournalFile::open(path, &FileStorage)?;
    has_live_counts(&file, now).map_err(|error| unusable(path, &error))
}

fn has_live_counts(file: &JournalFile, now: Nanos) -> Result<bool, redb::Error> {
    let mut any = false;
    file.each(|_, bytes| any |= !is_expired(bytes, now))?;
    Ok(any)
}

/// Whether `secret` names the counts of a journal. A journal without counts adopts it.
fn belongs_to(file: &mut JournalFile, secret: &Secret, now: Nanos) -> Result<bool, redb::Error> {
    let (mark, known) = (secret.journal_mark(), file.secret_mark()?);
    if known == Some(mark) {
        return Ok(true);
    }
    if known.is_some() && has_live_counts(file, now)? {
        return Ok(false);
    }
    file.set_secret_mark(mark)?;
    Ok(true)
}

fn unusable(path: &Path, error: &redb::Error) -> JournalOpenError {
    JournalOpenError::Damaged { file: path.to_owned(), why: error.to_string() }
}

/// Merges every unexpired counter into `memory`, and every refund that could otherwise be made again.
fn restore<C: Clock>(
    file: &JournalFile,
    path: &Path,
    memory: &MemoryStore<C>,
    limit: impl Fn(JournalCounterId<'_>) -> Option<Limit>,
) -> Result<Restored, JournalOpenError> {
    let (now, mut restored, mut read_error) = (memory.clock().now(), Restored::default(), None);
    let read = file.each(|name, bytes| {
        if is_expired(bytes, now) {
            return;
        }
        match JournalRecord::read(name, bytes) {
            Ok(found) => {
                if restore_counter(found, memory, &limit, now) {
                    restored.counters += 1;
                } else {
                    restored.without_rule += 1;
                }
            }
            Err(error) => read_error = Some(error.to_string()),
        }
    });
    let read = read.and_then(|()| {
        file.each_refund(|name, record| match read_refund(name, record) {
            Ok((id, until)) if until > now => memory.restore_refund(id, until, now),
            Ok(_) => {}
            Err(error) => read_error = Some(error.to_string()),
        })
    });
    let why = read.err().map(|error| error.to_string()).or(read_error);
    match why {
        None => Ok(restored),
        Some(why) => Err(JournalOpenError::Damaged { file: path.to_owned(), why }),
    }
}

fn restore_counter<C>(
    found: JournalRecord,
    memory: &MemoryStore<C>,
    limit: impl Fn(JournalCounterId<'_>) -> Option<Limit>,
    now: Nanos,
) -> bool {
    let (subject, rate, rule) = (found.subject, found.rate, found.rule.clone());
    let id = JournalCounterId { rule: &rule, rate, tag: found.counter.header.tag(), subject };
    let Some(limit) = limit(id) else {
        return false;
    };
    let state = found.state_under(&limit, now);
    let counter = JournaledCounter { subject, rule, rate, limit };
    let restore = Restore { charge: counter.charge(), state };
    memory.restore_at(&[restore], now).is_ok()
}

/// Drops expired records and frees their disk space. No request waits yet.
fn drop_expired(file: &mut JournalFile, now: Nanos) -> Result<(), redb::Error> {
    let mut expired = Batch::default();
    let ended = |name: &[u8], bytes: &[u8]| is_expired(bytes, now).then(|| (name.to_vec(), None));
    file.each(|name, bytes| expired.counts.extend(ended(name, bytes)))?;
    file.each_refund(|name, bytes| expired.refunds.extend(ended(name, bytes)))?;
    if expired.counts.is_empty() && expired.refunds.is_empty() {
        return Ok(());
    }
    file.write(&expired, 0, |_| false)?;
    file.compact()
}
