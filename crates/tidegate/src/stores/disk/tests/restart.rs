//! What is there after the process has ended, whichever way.

use tidegate_core::store::{Refund, Refunded, Source};

use super::*;

#[tokio::test]
async fn every_algorithm_goes_on_where_it_was() {
    for algorithm in Algorithm::ALL {
        let desk = Desk::new(algorithm);
        let (store, restored) = desk.open();
        assert_eq!(restored, Restored::default());
        for (subject, cost) in [(1, 7), (1, 30), (2, 100), (3, 1)] {
            let outcome = desk.charge(&store, subject, cost).await;
            assert!(outcome.admitted && outcome.source == Source::Exact);
        }
        desk.clock.advance(Nanos::from_millis(1_234));
        let before = desk.figures(&store).await;
        drop(store);
        let (store, restored) = desk.open();
        assert_eq!(restored.counters, 3, "{algorithm}");
        assert_eq!(desk.figures(&store).await, before, "{algorithm}");
    }
}

impl Desk {
    async fn figures(&self, store: &DiskStore<ManualClock>) -> Vec<String> {
        let mut found = Vec::new();
        for subject in 0..4 {
            let set = self.set(subject, 1, &PATIENT);
            let seen = store.inspect(&set).await.expect("an answer");
            found.push(format!("{seen:?}"));
        }
        found
    }
}

#[tokio::test]
async fn a_rule_that_is_not_durable_leaves_nothing() {
    let desk = Desk::new(Algorithm::SlidingWindow);
    let (store, _) = desk.open();
    let set = desk.set(1, 5, &Terms::USUAL);
    assert!(store.charge(&set).await.expect("an answer").admitted);
    assert_eq!(store.journal_stats().commits, 0);
    drop(store);
    assert_eq!(desk.open().1, Restored::default());
}

#[tokio::test]
async fn a_refusal_is_told_without_the_disk() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    assert!(desk.charge(&store, 1, 100).await.admitted);
    let commits = store.journal_stats().commits;
    assert!(!desk.charge(&store, 1, 1).await.admitted);
    assert_eq!(store.journal_stats().commits, commits);
}

#[tokio::test]
async fn refunds_debts_and_resets_are_kept_too() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    desk.charge(&store, 1, 50).await;
    let refund = Refund {
        id: 9,
        charged: NOW,
        until: NOW.plus(Nanos::from_secs(3_600)),
        set: desk.set(1, 20, &PATIENT),
    };
    store.refund(&refund).await.expect("an answer");
    store
        .force(&desk.set(2, 120, &PATIENT))
        .await
        .expect("an answer");
    desk.charge(&store, 3, 5).await;
    store
        .reset(&desk.set(3, 1, &PATIENT))
        .await
        .expect("an answer");
    drop(store);
    let (store, restored) = desk.open();
    assert_eq!(restored.counters, 2);
    let used = [desk.used(&store, 1).await, desk.used(&store, 2).await];
    assert_eq!((used, desk.used(&store, 3).await), ([30, 120], 0));
}

/// Each was told after its own commit: whatever the order of the writes, the last one holds them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn charges_at_once_are_all_there() {
    let desk = Arc::new(Desk::new(Algorithm::TokenBucket));
    let (store, _) = desk.open();
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..80_u128)
        .map(|i| {
            let (desk, store) = (Arc::clone(&desk), Arc::clone(&store));
            tokio::spawn(async move { desk.charge(&store, i % 2, 1).await.admitted })
        })
        .collect();
    for task in tasks {
        assert!(task.await.expect("a task"));
    }
    drop(Arc::into_inner(store));
    let (store, _) = desk.open();
    assert_eq!(desk.used(&store, 0).await, 40);
    assert_eq!(desk.used(&store, 1).await, 40);
}

#[tokio::test]
async fn a_list_waits_once() {
    let desk = Desk::new(Algorithm::SlidingWindow);
    let (store, _) = desk.open();
    let sets: Vec<ChargeSet<'_>> = (0..50).map(|i| desk.set(i, 1, &PATIENT)).collect();
    let outcomes = store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
    assert!(
        outcomes
            .iter()
            .all(|o| o.as_ref().is_ok_and(|o| o.admitted))
    );
    let stats = store.journal_stats();
    assert_eq!((stats.commits, stats.written), (1, 50));
}

#[tokio::test]
async fn what_is_past_is_dropped_at_the_start_and_beside_the_writes() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    let sets: Vec<ChargeSet<'_>> = (0..5_000).map(|i| desk.set(i, 1, &PATIENT)).collect();
    store.charge_each(&sets.iter().collect::<Vec<_>>()).await;
    desk.clock.advance(Nanos::from_secs(7_200));
    // Each write glances at 64 records.
    for i in 0..100 {
        desk.charge(&store, 10_000 + i, 1).await;
    }
    drop(store);
    let (store, restored) = desk.open();
    assert_eq!(restored.counters, 100);
    drop(store);
    let large = std::fs::metadata(desk.path()).expect("a file").len();
    desk.clock.advance(Nanos::from_secs(7_200));
    assert_eq!(desk.open().1, Restored::default());
    let small = std::fs::metadata(desk.path()).expect("a file").len();
    assert!(small < large, "{small} of {large}");
}

#[tokio::test]
async fn a_counter_follows_its_rule_to_another_limit() {
    let mut desk = Desk::new(Algorithm::TokenBucket);
    let (store, _) = desk.open();
    desk.charge(&store, 1, 60).await;
    drop(store);
    desk.limit = limit(Algorithm::FixedWindow, 70);
    let (store, restored) = desk.open();
    assert_eq!(restored.counters, 1);
    assert_eq!(desk.used(&store, 1).await, 60);
    assert!(desk.charge(&store, 1, 10).await.admitted);
    assert!(!desk.charge(&store, 1, 1).await.admitted);
}

#[tokio::test]
async fn a_counter_waits_for_its_rule_to_come_back() {
    let mut desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    desk.charge(&store, 1, 60).await;
    drop(store);
    desk.rule = RuleName::new("another");
    let (store, restored) = desk.open();
    assert_eq!((restored.counters, restored.without_rule), (0, 1));
    desk.charge(&store, 1, 1).await;
    drop(store);
    desk.rule = RuleName::new("bills");
    let (store, _) = desk.open();
    assert_eq!(desk.used(&store, 1).await, 60);
}

fn refund_of<'s>(desk: &'s Desk, id: u128) -> Refund<'s> {
    Refund {
        id,
        charged: NOW,
        until: NOW.plus(Nanos::from_secs(3_600)),
        set: desk.set(1, 10, &PATIENT),
    }
}

/// The ids of refunds were in memory alone: each restart made every receipt good again.
#[tokio::test]
async fn a_refund_is_made_once_whatever_restarts() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let (mut store, _) = desk.open();
    desk.charge(&store, 1, 50).await;
    let refunded = store.refund(&refund_of(&desk, 9)).await;
    assert_eq!(refunded.expect("an answer"), Refunded::Done);
    for _ in 0..3 {
        drop(store);
        store = desk.open().0;
        let again = store.refund(&refund_of(&desk, 9)).await;
        assert_eq!(again.expect("an answer"), Refunded::Already);
        assert_eq!(desk.used(&store, 1).await, 40);
    }
    let another = store.refund(&refund_of(&desk, 10)).await;
    assert_eq!(another.expect("an answer"), Refunded::Done);
    assert_eq!(desk.used(&store, 1).await, 30);
}

#[tokio::test]
async fn a_refund_is_forgotten_with_its_receipt() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    desk.charge(&store, 1, 50).await;
    let refunds: Vec<u128> = (0..500).collect();
    for id in &refunds {
        let refunded = store.refund(&refund_of(&desk, *id)).await;
        assert_eq!(refunded.expect("an answer"), Refunded::Done);
    }
    let noted = |desk: &Desk| {
        let file = JournalFile::open(&desk.path(), &Plain).expect("a journal");
        let mut notes = 0;
        file.each_refund(|_, _| notes += 1).expect("a table");
        notes
    };
    drop(store);
    assert_eq!(noted(&desk), 500);
    let (store, _) = desk.open();
    desk.clock.advance(Nanos::from_secs(3_600));
    // Each write glances at 64 records.
    for subject in 0..8 {
        desk.charge(&store, 100 + subject, 1).await;
    }
    drop(store);
    assert_eq!(noted(&desk), 0);
}

/// A journal has a name of its own, so that a receipt of one is not taken for one of another.
#[tokio::test]
async fn durable_counts_are_of_the_journal_and_the_others_of_the_process() {
    let desk = Desk::new(Algorithm::FixedWindow);
    let runs = |store: &DiskStore<ManualClock>| {
        [&PATIENT, &Terms::USUAL].map(|terms| store.run_of(terms).expect("a run"))
    };
    let first = runs(&desk.open().0);
    let second = runs(&desk.open().0);
    assert_eq!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
    let elsewhere = runs(&Desk::new(Algorithm::FixedWindow).open().0);
    assert_ne!(first[0], elsewhere[0]);
}

/// A secret that was lost was drawn anew, and the service went on with nothing counted.
#[tokio::test]
async fn counts_of_another_secret_are_refused_by_name_until_they_are_past() {
    let mut desk = Desk::new(Algorithm::FixedWindow);
    let (store, _) = desk.open();
    desk.charge(&store, 1, 60).await;
    drop(store);
    assert!(has_counts(&desk.path(), NOW).expect("a journal"));
    let other = || Secret::from_bytes(b"fedcba9876543210").expect("long enough");
    let ours = std::mem::replace(&mut desk.secret, other());
    let refused = desk
        .try_open(&desk.path())
        .err()
        .map(|error| error.to_string());
    let refused = refused.expect("another secret");
    assert!(refused.contains("counts.redb") && refused.contains("another secret"));
    desk.secret = ours;
    let (store, _) = desk.open();
    assert_eq!(desk.used(&store, 1).await, 60, "nothing was touched");
    drop(store);
    desk.clock.advance(Nanos::from_secs(7_200));
    let later = NOW.plus(Nanos::from_secs(7_200));
    assert!(!has_counts(&desk.path(), later).expect("a journal"));
    desk.secret = other();
    assert_eq!(desk.open().1, Restored::default());
}
