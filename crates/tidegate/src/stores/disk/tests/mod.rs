//! What a journal preserves, which files it rejects, and what happens when the disk fails.

mod damage;
mod failure;
mod restart;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Counters, Durability, OnStoreFailure, Outcome, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::file::{FileStorage, JournalFile, StorageFactory};
use super::{DiskStore, JournalCounterId, JournalEvent, JournalOpenError, Restored, has_counts};
use crate::clock::ManualClock;
use crate::secret::Secret;
use crate::stores::memory::MemoryStore;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);

/// No test may fail because a disk is slow.
const PATIENT: RuleOptions =
    RuleOptions { durability: Durability::Disk, budget: Some(Nanos::from_secs(60)), ..RuleOptions::DEFAULT };
const STRICT: RuleOptions = RuleOptions { on_failure: OnStoreFailure::Deny, ..PATIENT };

fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(3_600));
    Limit::compile(&spec, Precision::Double).expect("a limit")
}

/// A folder, a clock, and the events of the journal.
struct DiskFixture {
    folder: TempDir,
    clock: ManualClock,
    events: Arc<Mutex<Vec<String>>>,
    limit: Limit,
    rule: RuleName,
    secret: Secret,
}

impl DiskFixture {
    fn new(algorithm: Algorithm) -> Self {
        DiskFixture {
            folder: tempfile::tempdir().expect("a folder"),
            clock: ManualClock::at(NOW),
            events: Arc::default(),
            limit: limit(algorithm, 100),
            rule: RuleName::new("bills"),
            secret: Secret::from_bytes(b"0123456789abcdef").expect("long enough"),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("counts.redb")
    }

    fn open(&self) -> (DiskStore<ManualClock>, Restored) {
        self.try_open(&self.path()).expect("a journal")
    }

    fn try_open(&self, path: &Path) -> Result<(DiskStore<ManualClock>, Restored), JournalOpenError> {
        self.open_on(FileStorage, path)
    }

    fn open_on(
        &self,
        medium: impl StorageFactory,
        path: &Path,
    ) -> Result<(DiskStore<ManualClock>, Restored), JournalOpenError> {
        let memory = MemoryStore::new(self.clock.clone());
        let events = Arc::clone(&self.events);
        let known = |of: JournalCounterId<'_>| (of.rule == &self.rule).then(|| self.limit.clone());
        let listener = move |event| {
            events.lock().push(match event {
                JournalEvent::Failing(_) => "fails".to_owned(),
                JournalEvent::Recovered => "works".to_owned(),
            });
        };
        DiskStore::open_on(medium, path, &self.secret, memory, known, Box::new(listener))
    }

    fn set<'s>(&'s self, subject: u128, cost: u64, options: &'s RuleOptions) -> ChargeSet<'s> {
        let charge = Charge {
            subject: Fingerprint::new(subject),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a cost"),
            role: Role::Enforce,
            options,
        };
        ChargeSet::of([charge])
    }

    async fn charge(&self, store: &DiskStore<ManualClock>, subject: u128, cost: u64) -> Outcome {
        let set = self.set(subject, cost, &PATIENT);
        store.charge(&set).await.expect("a reply")
    }

    async fn used(&self, store: &DiskStore<ManualClock>, subject: u128) -> u64 {
        let found = store.inspect(&self.set(subject, 1, &PATIENT)).await;
        let found = found.expect("a reply");
        found[0].map_or(0, |inspection| inspection.used)
    }
}
