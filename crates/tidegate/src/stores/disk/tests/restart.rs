//! The state after the process has ended, by a stop or a crash.

use tidegate_core::store::{Refund, Refunded, Source, Store};

use super::*;

#[tokio::test]
async fn every_algorithm_continues_where_it_was() {
    for algorithm in Algorithm::ALL {
        let fixture = DiskFixture::new(algorithm);
        let (store, restored) = fixture.open();
        assert_eq!(restored, Restored::default());
        for (subject, cost) in [(1, 7), (1, 30), (2, 100), (3, 1)] {
            let outcome = fixture.charge(&store, subject, cost).await;
            assert!(outcome.admitted && outcome.source == Source::Exact);
        }
        fixture.clock.advance(Nanos::from_millis(1_234));
        let before = fixture.figures(&store).await;
        drop(store);
        let (store, restored) = fixture.open();
        assert_eq!(restored.counters, 3, "{algorithm}");
        assert_eq!(fixture.figures(&store).await, before, "{algorithm}");
    }
}

impl DiskFixture {
    async fn figures(&self, store: &DiskStore<ManualClock>) -> Vec<String> {
        let mut found = Vec::new();
        for subject in 0..4 {
            let set = self.set(subject, 1, &PATIENT);
            let seen = store.inspect(&set).await.expect("a reply");
            found.push(format!("{seen:?}"));
        }
        found
    }
}

#[tokio::test]
async fn a_rule_that_is_not_durable_writes_nothing() {
    let fixture = DiskFixture::new(Algorithm::SlidingWindow);
    let (store, _) = fixture.open();
    let set = fixture.set(1, 5, &RuleOptions::DEFAULT);
    assert!(store.charge(&set).await.expect("a reply").admitted);
    assert_eq!(store.journal_stats().commits, 0);
    drop(store);
    assert_eq!(fixture.open().1, Restored::default());
}

#[tokio::test]
async fn a_denial_does_not_wait_for_the_disk() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    assert!(fixture.charge(&store, 1, 100).await.admitted);
    let commits = store.journal_stats().commits;
    assert!(!fixture.charge(&store, 1, 1).await.admitted);
    assert_eq!(store.journal_stats().commits, commits);
}

#[tokio::test]
async fn refunds_debts_and_resets_are_durable_too() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    fixture.charge(&store, 1, 50).await;
    let refund = Refund {
        id: 9,
        charged_at: NOW,
        expires_at: NOW.plus(Nanos::from_secs(3_600)),
        set: fixture.set(1, 20, &PATIENT),
    };
    store.refund(&refund).await.expect("a reply");
    store.force(&fixture.set(2, 120, &PATIENT)).await.expect("a reply");
    fixture.charge(&store, 3, 5).await;
    store.reset(&fixture.set(3, 1, &PATIENT)).await.expect("a reply");
    drop(store);
    let (store, restored) = fixture.open();
    assert_eq!(restored.counters, 2);
    let used = [fixture.used(&store, 1).await, fixture.used(&store, 2).await];
    assert_eq!((used, fixture.used(&store, 3).await), ([30, 120], 0));
}

/// Each charge returned after its own commit: whatever the order of the writes, the last one holds them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_charges_are_all_restored() {
    let fixture = Arc::new(DiskFixture::new(Algorithm::TokenBucket));
    let (store, _) = fixture.open();
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..80_u128)
        .map(|i| {
            let (fixture, store) = (Arc::clone(&fixture), Arc::clone(&store));
            tokio::spawn(async move { fixture.charge(&store, i % 2, 1).await.admitted })
        })
        .collect();
    for task in tasks {
        assert!(task.await.expect("a task"));
    }
    drop(Arc::into_inner(store));
    let (store, _) = fixture.open();
    assert_eq!(fixture.used(&store, 0).await, 40);
    assert_eq!(fixture.used(&store, 1).await, 40);
}

#[tokio::test]
async fn a_list_of_charges_waits_once() {
    let fixture = DiskFixture::new(Algorithm::SlidingWindow);
    let (store, _) = fixture.open();
    let sets: Vec<ChargeSet<'_>> = (0..50).map(|i| fixture.set(i, 1, &PATIENT)).collect();
    let outcomes = store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
    assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(|o| o.admitted)));
    let stats = store.journal_stats();
    assert_eq!((stats.commits, stats.written), (1, 50));
}

#[tokio::test]
async fn expired_records_are_dropped_at_the_start_and_during_writes() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    let sets: Vec<ChargeSet<'_>> = (0..5_000).map(|i| fixture.set(i, 1, &PATIENT)).collect();
    store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
    fixture.clock.advance(Nanos::from_secs(7_200));
    // Each write checks 64 records.
    for i in 0..100 {
        fixture.charge(&store, 10_000 + i, 1).await;
    }
    drop(store);
    let (store, restored) = fixture.open();
    assert_eq!(restored.counters, 100);
    drop(store);
    let large = std::fs::metadata(fixture.path()).expect("a file").len();
    fixture.clock.advance(Nanos::from_secs(7_200));
    assert_eq!(fixture.open().1, Restored::default());
    let small = std::fs::metadata(fixture.path()).expect("a file").len();
    assert!(small < large, "{small} of {large}");
}

#[tokio::test]
async fn a_counter_follows_its_rule_to_another_limit() {
    let mut fixture = DiskFixture::new(Algorithm::TokenBucket);
    let (store, _) = fixture.open();
    fixture.charge(&store, 1, 60).await;
    drop(store);
    fixture.limit = limit(Algorithm::FixedWindow, 70);
    let (store, restored) = fixture.open();
    assert_eq!(restored.counters, 1);
    assert_eq!(fixture.used(&store, 1).await, 60);
    assert!(fixture.charge(&store, 1, 10).await.admitted);
    assert!(!fixture.charge(&store, 1, 1).await.admitted);
}

#[tokio::test]
async fn a_counter_waits_for_its_rule_to_be_restored() {
    let mut fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    fixture.charge(&store, 1, 60).await;
    drop(store);
    fixture.rule = RuleName::new("another");
    let (store, restored) = fixture.open();
    assert_eq!((restored.counters, restored.without_rule), (0, 1));
    fixture.charge(&store, 1, 1).await;
    drop(store);
    fixture.rule = RuleName::new("bills");
    let (store, _) = fixture.open();
    assert_eq!(fixture.used(&store, 1).await, 60);
}

fn refund_of<'s>(fixture: &'s DiskFixture, id: u128) -> Refund<'s> {
    Refund { id, charged_at: NOW, expires_at: NOW.plus(Nanos::from_secs(3_600)), set: fixture.set(1, 10, &PATIENT) }
}

/// The ids of refunds were in memory alone: each restart made every receipt valid again.
#[tokio::test]
async fn a_refund_is_made_once_across_restarts() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (mut store, _) = fixture.open();
    fixture.charge(&store, 1, 50).await;
    let refunded = store.refund(&refund_of(&fixture, 9)).await;
    assert_eq!(refunded.expect("a reply"), Refunded::Done);
    for _ in 0..3 {
        drop(store);
        store = fixture.open().0;
        let again = store.refund(&refund_of(&fixture, 9)).await;
        assert_eq!(again.expect("a reply"), Refunded::Already);
        assert_eq!(fixture.used(&store, 1).await, 40);
    }
    let another = store.refund(&refund_of(&fixture, 10)).await;
    assert_eq!(another.expect("a reply"), Refunded::Done);
    assert_eq!(fixture.used(&store, 1).await, 30);
}

#[tokio::test]
async fn a_refund_id_expires_with_its_receipt() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    fixture.charge(&store, 1, 50).await;
    let refunds: Vec<u128> = (0..500).collect();
    for id in &refunds {
        let refunded = store.refund(&refund_of(&fixture, *id)).await;
        assert_eq!(refunded.expect("a reply"), Refunded::Done);
    }
    let recorded = |fixture: &DiskFixture| {
        let file = JournalFile::open(&fixture.path(), &FileStorage).expect("a journal");
        let mut refunds = 0;
        file.each_refund(|_, _| refunds += 1).expect("a table");
        refunds
    };
    drop(store);
    assert_eq!(recorded(&fixture), 500);
    let (store, _) = fixture.open();
    fixture.clock.advance(Nanos::from_secs(3_600));
    // Each write checks 64 records.
    for subject in 0..8 {
        fixture.charge(&store, 100 + subject, 1).await;
    }
    drop(store);
    assert_eq!(recorded(&fixture), 0);
}

/// A journal has its own run id, so that a receipt of one journal is not accepted by another.
#[tokio::test]
async fn durable_counts_belong_to_the_journal_and_others_to_the_process() {
    let fixture = DiskFixture::new(Algorithm::FixedWindow);
    let runs = |store: &DiskStore<ManualClock>| {
        [&PATIENT, &RuleOptions::DEFAULT].map(|options| store.run_id(options).expect("a run"))
    };
    let first = runs(&fixture.open().0);
    let second = runs(&fixture.open().0);
    assert_eq!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
    let elsewhere = runs(&DiskFixture::new(Algorithm::FixedWindow).open().0);
    assert_ne!(first[0], elsewhere[0]);
}

/// After a secret was lost a new one was drawn, and the service continued with nothing counted.
#[tokio::test]
async fn counts_of_another_secret_are_rejected_until_they_expire() {
    let mut fixture = DiskFixture::new(Algorithm::FixedWindow);
    let (store, _) = fixture.open();
    fixture.charge(&store, 1, 60).await;
    drop(store);
    assert!(has_counts(&fixture.path(), NOW).expect("a journal"));
    let other = || Secret::from_bytes(b"fedcba9876543210").expect("long enough");
    let ours = std::mem::replace(&mut fixture.secret, other());
    let error = fixture.try_open(&fixture.path()).err().map(|error| error.to_string());
    let error = error.expect("another secret");
    assert!(error.contains("counts.redb") && error.contains("another secret"));
    fixture.secret = ours;
    let (store, _) = fixture.open();
    assert_eq!(fixture.used(&store, 1).await, 60, "nothing was touched");
    drop(store);
    fixture.clock.advance(Nanos::from_secs(7_200));
    let later = NOW.plus(Nanos::from_secs(7_200));
    assert!(!has_counts(&fixture.path(), later).expect("a journal"));
    fixture.secret = other();
    assert_eq!(fixture.open().1, Restored::default());
}
