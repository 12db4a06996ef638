//! A disk that is full, and one that has room again.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{DatabaseError, StorageBackend};
use tidegate_core::store::{Reserve, Source};

use super::*;

/// A disk that is full whenever it is said to be.
#[derive(Clone, Debug, Default)]
struct Disk {
    full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Pages {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }
}

impl Medium for Disk {
    type Backend = Pages;

    fn over(&self, file: File) -> Result<Pages, DatabaseError> {
        Ok(Pages {
            file: FileBackend::new(file)?,
            full: Arc::clone(&self.full),
        })
    }
}

impl Pages {
    fn room(&self) -> io::Result<()> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Pages {
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
async fn on_a_full_disk_each_rule_does_as_it_says_and_nothing_is_lost_when_there_is_room() {
    let (desk, disk) = (Desk::new(Algorithm::FixedWindow), Disk::default());
    let (store, _) = desk.open_on(disk.clone(), &desk.path()).expect("a journal");
    assert_eq!(desk.charge(&store, 1, 10).await.source, Source::Exact);

    disk.set_full(true);
    let local = desk.charge(&store, 1, 5).await;
    assert!(local.admitted, "memory decides");
    assert_eq!(local.source, Source::Fallback);
    let strict = desk.set(1, 7, &STRICT);
    let refused = store.charge(&strict).await.expect("an answer");
    assert!(!refused.admitted && !refused.readings[0].verdict.allows());
    assert_eq!(refused.source, Source::Fallback);
    assert_eq!(
        desk.used(&store, 1).await,
        15,
        "what was refused is given back"
    );
    let plain = desk.set(2, 1, &Terms::USUAL);
    let plain = store.charge(&plain).await.expect("an answer");
    assert_eq!((plain.admitted, plain.source), (true, Source::Exact));
    assert!(store.journal_stats().failing);

    disk.set_full(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while desk.charge(&store, 3, 1).await.source != Source::Exact {
        assert!(Instant::now() < deadline, "the journal never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(*desk.news.lock(), ["fails", "works"]);
    let stats = store.journal_stats();
    assert!(!stats.failing && stats.unkept >= 2, "{stats:?}");
    drop(store);
    let (store, _) = desk.open();
    assert_eq!(
        desk.used(&store, 1).await,
        15,
        "what memory decided was written later"
    );
}

/// Nobody need ask again for what is due to be written.
#[tokio::test]
async fn what_is_due_is_written_by_itself() {
    let (desk, disk) = (Desk::new(Algorithm::FixedWindow), Disk::default());
    let (store, _) = desk.open_on(disk.clone(), &desk.path()).expect("a journal");
    disk.set_full(true);
    assert_eq!(desk.charge(&store, 1, 10).await.source, Source::Fallback);
    disk.set_full(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.journal_stats().failing {
        assert!(Instant::now() < deadline, "it was not tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(store);
    let (store, _) = desk.open();
    assert_eq!(desk.used(&store, 1).await, 10);
}

#[tokio::test]
async fn a_start_on_a_full_disk_says_so() {
    let (desk, disk) = (Desk::new(Algorithm::FixedWindow), Disk::default());
    disk.set_full(true);
    let Err(error) = desk.open_on(disk.clone(), &desk.path()) else {
        panic!("it was opened");
    };
    assert!(error.to_string().contains("has room"), "{error}");
    disk.set_full(false);
    desk.open_on(disk, &desk.path()).expect("a journal");
}

#[tokio::test]
async fn a_limit_too_fine_for_a_record_is_refused() {
    let mut desk = Desk::new(Algorithm::TokenBucket);
    let spec = Spec::new(Algorithm::TokenBucket, 3, Nanos::from_secs(1));
    desk.limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
    let (store, _) = desk.open();
    let answer = store.charge(&desk.set(1, 1, &PATIENT)).await;
    assert!(answer.is_err());
    assert_eq!(desk.used(&store, 1).await, 0);
}

/// Refused for want of the disk, an estimate is given back at once, and not once more at its end.
#[tokio::test]
async fn an_estimate_refused_on_a_full_disk_comes_back_once() {
    let (desk, disk) = (Desk::new(Algorithm::FixedWindow), Disk::default());
    let (store, _) = desk.open_on(disk.clone(), &desk.path()).expect("a journal");
    let reserve = async |id, cost, terms| {
        let reserve = Reserve {
            id,
            lasts: Nanos::from_secs(60),
            set: desk.set(1, cost, terms),
        };
        store.reserve(&reserve).await.expect("an answer")
    };
    desk.charge(&store, 1, 50).await;
    disk.set_full(true);
    let refused = reserve(1, 7, &STRICT).await;
    assert!(!refused.admitted && refused.source == Source::Fallback);
    let stands = reserve(2, 9, &PATIENT).await;
    assert!(stands.admitted && stands.source == Source::Fallback);
    assert_eq!(desk.used(&store, 1).await, 59);
    desk.clock.advance(Nanos::from_secs(60));
    reserve(3, 1, &PATIENT).await;
    assert_eq!(desk.used(&store, 1).await, 51, "what stood came back");
}
