//! What a journal keeps, what it refuses to read, and what happens when the disk fails.

mod damage;
mod failure;
mod restart;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Durability, OnStoreFailure, Outcome, Role, Store, Terms,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::file::{JournalFile, Medium, Plain};
use super::{BadJournal, DiskStore, JournalNews, Remembered, Restored, has_counts};
use crate::clock::ManualClock;
use crate::secret::Secret;
use crate::stores::memory::MemoryStore;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);

/// No test is to fail because a disk is slow.
const PATIENT: Terms = Terms {
    durability: Durability::Disk,
    budget: Some(Nanos::from_secs(60)),
    ..Terms::USUAL
};
const STRICT: Terms = Terms {
    on_failure: OnStoreFailure::Deny,
    ..PATIENT
};

fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(3_600));
    Limit::compile(&spec, Precision::Script).expect("a limit")
}

/// A folder, a clock, and what the journal said.
struct Desk {
    folder: TempDir,
    clock: ManualClock,
    news: Arc<Mutex<Vec<String>>>,
    limit: Limit,
    rule: RuleName,
    secret: Secret,
}

impl Desk {
    fn new(algorithm: Algorithm) -> Self {
        Desk {
            folder: tempfile::tempdir().expect("a folder"),
            clock: ManualClock::at(NOW),
            news: Arc::default(),
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

    fn try_open(&self, path: &Path) -> Result<(DiskStore<ManualClock>, Restored), BadJournal> {
        self.open_on(Plain, path)
    }

    fn open_on(
        &self,
        medium: impl Medium,
        path: &Path,
    ) -> Result<(DiskStore<ManualClock>, Restored), BadJournal> {
        let memory = MemoryStore::new(self.clock.clone());
        let news = Arc::clone(&self.news);
        let known = |of: Remembered<'_>| (of.rule == &self.rule).then(|| self.limit.clone());
        let told = move |said| {
            news.lock().push(match said {
                JournalNews::Fails(_) => "fails".to_owned(),
                JournalNews::Works => "works".to_owned(),
            });
        };
        DiskStore::open_on(medium, path, &self.secret, memory, known, Box::new(told))
    }

    fn set<'s>(&'s self, subject: u128, cost: u64, terms: &'s Terms) -> ChargeSet<'s> {
        let charge = Charge {
            subject: Fingerprint::new(subject),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a cost"),
            role: Role::Enforce,
            terms,
        };
        ChargeSet::of([charge])
    }

    async fn charge(&self, store: &DiskStore<ManualClock>, subject: u128, cost: u64) -> Outcome {
        let set = self.set(subject, cost, &PATIENT);
        store.charge(&set).await.expect("an answer")
    }

    async fn used(&self, store: &DiskStore<ManualClock>, subject: u128) -> u64 {
        let found = store.inspect(&self.set(subject, 1, &PATIENT)).await;
        let found = found.expect("an answer");
        found[0].map_or(0, |inspection| inspection.used)
    }
}
