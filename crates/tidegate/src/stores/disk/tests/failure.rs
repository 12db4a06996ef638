//! A disk that is full, and later has room again.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{DatabaseError, StorageBackend};
use tidegate_core::store::{Degraded, Reservations, Reserve, Source};

use super::*;

/// A disk that is full on request.
#[derive(Clone, Debug, Default)]
struct FaultyDisk {
    full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FaultyBackend {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl FaultyDisk {
    fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }
}

impl StorageFactory for FaultyDisk {
    type Backend = FaultyBackend;

    fn open_backend(&self, file: File) -> Result<FaultyBackend, DatabaseError> {
        Ok(FaultyBackend { file: FileBackend::new(file)?, full: Arc::clone(&self.full) })
    }
}

impl FaultyBackend {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

impl StorageBackend for FaultyBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }
}

#[tokio::test]
async fn on_a_full_disk_each_rule_follows_its_option_and_nothing_is_lost_when_there_is_room() {
    let (fixture, disk) = (DiskFixture::new(Algorithm::FixedWindow), FaultyDisk::default());
    let (store, _) = fixture.open_on(disk.clone(), &fixture.path()).expect("a journal");
    assert_eq!(fixture.charge(&store, 1, 10).await.source, Source::Exact);

    disk.set_full(true);
    let local = fixture.charge(&store, 1, 5).await;
    assert!(local.admitted, "memory decides");
    assert_eq!((local.source, local.degraded), (Source::Exact, Some(Degraded::NotDurable)));
    let strict = fixture.set(1, 7, &STRICT);
    let denied = store.charge(&strict).await.expect("a reply");
    assert!(!denied.admitted);
    assert_eq!((denied.source, denied.degraded), (Source::Exact, Some(Degraded::DeniedByPolicy { charge: 0 })));
    let found = store.peek(&strict).await.expect("a reply");
    assert_eq!(denied.readings, found.readings, "the readings are those of the counter: its cost fits");
    assert_eq!(found.readings[0].figures.remaining, 85);
    assert_eq!(fixture.used(&store, 1).await, 15, "denied charges are refunded");
    let plain = fixture.set(2, 1, &RuleOptions::DEFAULT);
    let plain = store.charge(&plain).await.expect("a reply");
    assert_eq!((plain.admitted, plain.source), (true, Source::Exact));
    assert!(store.journal_stats().failing);

    disk.set_full(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while fixture.charge(&store, 3, 1).await.degraded.is_some() {
        assert!(Instant::now() < deadline, "the journal never recovered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(*fixture.events.lock(), ["fails", "works"]);
    let stats = store.journal_stats();
    assert!(!stats.failing && stats.lost >= 2, "{stats:?}");
    drop(store);
    let (store, _) = fixture.open();
    assert_eq!(fixture.used(&store, 1).await, 15, "decisions made in memory were written later");
}

/// A caller need not charge again for a due counter to be written.
#[tokio::test]
async fn due_counters_are_written_without_another_charge() {
    let (fixture, disk) = (DiskFixture::new(Algorithm::FixedWindow), FaultyDisk::default());
    let (store, _) = fixture.open_on(disk.clone(), &fixture.path()).expect("a journal");
    disk.set_full(true);
    assert_eq!(fixture.charge(&store, 1, 10).await.degraded, Some(Degraded::NotDurable));
    disk.set_full(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.journal_stats().failing {
        assert!(Instant::now() < deadline, "the write was not retried");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(store);
    let (store, _) = fixture.open();
    assert_eq!(fixture.used(&store, 1).await, 10);
}

#[tokio::test]
async fn a_start_on_a_full_disk_is_an_error() {
    let (fixture, disk) = (DiskFixture::new(Algorithm::FixedWindow), FaultyDisk::default());
    disk.set_full(true);
    let Err(error) = fixture.open_on(disk.clone(), &fixture.path()) else {
        panic!("it was opened");
    };
    assert!(error.to_string().contains("has room"), "{error}");
    disk.set_full(false);
    fixture.open_on(disk, &fixture.path()).expect("a journal");
}

#[tokio::test]
async fn a_limit_too_fine_for_a_record_is_rejected() {
    let mut fixture = DiskFixture::new(Algorithm::TokenBucket);
    let spec = Spec::new(Algorithm::TokenBucket, 3, Nanos::from_secs(1));
    fixture.limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
    let (store, _) = fixture.open();
    let result = store.charge(&fixture.set(1, 1, &PATIENT)).await;
    assert!(result.is_err());
    assert_eq!(fixture.used(&store, 1).await, 0);
}

/// An estimate denied because of the disk is refunded at once, and not again at its end.
#[tokio::test]
async fn an_estimate_denied_on_a_full_disk_is_refunded_once() {
    let (fixture, disk) = (DiskFixture::new(Algorithm::FixedWindow), FaultyDisk::default());
    let (store, _) = fixture.open_on(disk.clone(), &fixture.path()).expect("a journal");
    let reserve = async |id, cost, options| {
        let reserve = Reserve { id, ttl: Nanos::from_secs(60), set: fixture.set(1, cost, options) };
        store.reserve(&reserve).await.expect("a reply")
    };
    fixture.charge(&store, 1, 50).await;
    disk.set_full(true);
    let denied = reserve(1, 7, &STRICT).await;
    assert_eq!((denied.admitted, denied.degraded), (false, Some(Degraded::DeniedByPolicy { charge: 0 })));
    let admitted = reserve(2, 9, &PATIENT).await;
    assert_eq!((admitted.admitted, admitted.degraded), (true, Some(Degraded::NotDurable)));
    assert_eq!(fixture.used(&store, 1).await, 59);
    fixture.clock.advance(Nanos::from_secs(60));
    reserve(3, 1, &PATIENT).await;
    assert_eq!(fixture.used(&store, 1).await, 51, "the admitted estimate was refunded at its end");
}
