//! Damaged files, and files that are not journals.

use std::fs;

use redb::{Database, TableDefinition};

use tidegate_core::store::Store;

use super::*;

const PAGE: usize = 4_096;

#[track_caller]
fn assert_rejected(fixture: &DiskFixture, path: &Path, expected: &str) {
    let before = fs::read(path).expect("a file");
    let Err(error) = fixture.try_open(path) else {
        panic!("{} was accepted", path.display());
    };
    let message = error.to_string();
    let named = message.starts_with(&format!("{}: ", path.display()));
    assert!(named && message.contains(expected), "{message}");
    assert!(message.contains("move it away"), "{message}");
    let after = fs::read(path).expect("a file");
    assert!(before == after, "it was changed");
}

#[tokio::test]
async fn a_file_that_is_no_journal_is_rejected_and_left_alone() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let path = fixture.path();
    for contents in [&b""[..], b"hello", &[0; 3 * PAGE], &[255; 100_000]] {
        fs::write(&path, contents).expect("a file");
        assert_rejected(&fixture, &path, "damaged or no journal");
    }
    fs::remove_file(&path).expect("a file");
    let foreign = Database::create(&path).expect("a database");
    let change = foreign.begin_write().expect("a change");
    let table = TableDefinition::<&str, u64>::new("somebody else's");
    change.open_table(table).expect("a table").insert("", 1).expect("a row");
    change.commit().expect("a commit");
    drop(foreign);
    let Err(error) = fixture.try_open(&path) else {
        panic!("a database of another program was accepted");
    };
    assert!(error.to_string().contains("another program wrote it"), "{error}");
}

#[tokio::test]
async fn two_stores_cannot_share_a_journal() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (_open, _) = fixture.open();
    let Err(error) = fixture.try_open(&fixture.path()) else {
        panic!("it was opened twice");
    };
    assert!(error.to_string().contains("another process has this journal open"), "{error}");
}

/// Wherever a file is truncated, either every count is there or the file is rejected, the second time too.
#[tokio::test]
async fn a_truncated_file_is_rejected_or_complete() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    let sets: Vec<ChargeSet<'_>> = (0..2_000).map(|i| fixture.set(i, 3, &PATIENT)).collect();
    for some in sets.chunks(500) {
        store.charge_each(&some.iter().collect::<Vec<_>>()).await;
    }
    drop(store);
    let whole = fs::read(fixture.path()).expect("a file");
    let cut = fixture.folder.path().join("cut.redb");
    let (mut rejected, mut accepted) = (0, 0);
    for end in (PAGE..whole.len()).step_by(PAGE) {
        fs::write(&cut, &whole[..end]).expect("a file");
        for _ in 0..2 {
            match fixture.try_open(&cut) {
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("damaged") && message.contains("cut.redb"), "{message}");
                    rejected += 1;
                }
                Ok((_, restored)) => {
                    assert_eq!(restored.counters, 2_000, "cut at {end} of {}", whole.len());
                    accepted += 1;
                }
            }
        }
    }
    assert!(rejected > 0, "{accepted} were accepted");
}

/// A flipped byte is detected, or does not matter.
#[tokio::test]
async fn a_corrupted_file_is_rejected_or_complete() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    let sets: Vec<ChargeSet<'_>> = (0..500).map(|i| fixture.set(i, 3, &PATIENT)).collect();
    store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
    drop(store);
    let whole = fs::read(fixture.path()).expect("a file");
    let rotten = fixture.folder.path().join("rotten.redb");
    let mut rejected = 0;
    for at in (0..whole.len()).step_by(15_013) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&rotten, &bytes).expect("a file");
        match fixture.try_open(&rotten) {
            Err(_) => rejected += 1,
            Ok((_, restored)) => assert_eq!(restored.counters, 500, "byte {at}"),
        }
    }
    assert!(rejected > 0);
}
