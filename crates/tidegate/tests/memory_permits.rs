//! Permits in a store that may not grow: they are within the cap, every subject keeps to its limit, and
//! newcomers are not locked out.

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::store::{PermitReply, PermitRequest, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

const CAP: u64 = 4 << 20;
const LASTS: Nanos = Nanos::from_secs(60);

struct PermitFixture {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    rule: RuleName,
}

impl PermitFixture {
    fn new() -> Self {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        PermitFixture {
            store: MemoryStore::with_cap(clock.clone(), CAP),
            clock,
            rule: RuleName::new("open"),
        }
    }

    fn hold(&self, subject: u64, holder: u64, max_permits: u32) -> PermitRequest<'_> {
        let spread = subject.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        PermitRequest {
            subject: Fingerprint::new((u128::from(spread) << 64) | u128::from(spread >> 7)),
            rule: &self.rule,
            holder: u128::from(holder),
            max_permits,
            ttl: LASTS,
            options: &RuleOptions::DEFAULT,
        }
    }

    fn acquire(&self, subject: u64, holder: u64, max_permits: u32) -> PermitReply {
        let hold = self.hold(subject, holder, max_permits);
        self.store.acquire_at(&hold, self.clock.now())
    }

    fn renew(&self, subject: u64, holder: u64, max_permits: u32) -> bool {
        let hold = self.hold(subject, holder, max_permits);
        self.store.renew_at(&hold, self.clock.now()).granted
    }

    fn release(&self, subject: u64, holder: u64) {
        let hold = self.hold(subject, holder, 0);
        self.store.release_at(&hold, self.clock.now());
    }

    #[track_caller]
    fn keeps_to_the_cap(&self) {
        let stats = self.store.stats();
        // Entries of crowds are few, and written whatever there is.
        assert!(stats.bytes <= stats.cap + (64 << 10), "{stats:?}");
        assert!(stats.bytes <= CAP, "{stats:?}");
    }
}

/// Their memory was counted and never refused: a 16 MiB store held 48 MB of them.
#[test]
fn permits_of_many_subjects_keep_to_the_cap_and_every_newcomer_gets_one() {
    let bench = PermitFixture::new();
    let mut by = [0; 2];
    for subject in 0..150_000 {
        let held = bench.acquire(subject, subject, 10_000);
        assert!(held.granted, "{subject}");
        by[usize::from(held.source == Source::Overflow)] += 1;
    }
    bench.keeps_to_the_cap();
    assert!(by[0] > 15_000, "{by:?} have a list of their own and share");
    assert!(by[1] > 50_000, "{by:?}");
    bench
        .clock
        .advance(Nanos::new(2 * LASTS.get() + 1_000_000_000));
    while bench.store.sweep(usize::MAX) > 0 {}
    assert_eq!(bench.store.stats().keys, 0);
    assert_eq!(bench.acquire(7, 7, 1).source, Source::Exact, "room again");
}

/// The same with all permits of one subject, and of a few.
#[test]
fn permits_of_few_subjects_keep_to_the_cap_and_to_the_limit() {
    let bench = PermitFixture::new();
    for subject in 0..20 {
        let drawn = (0..10_050).filter(|n| {
            let holder = subject * 100_000 + n;
            bench.acquire(subject, holder, 10_000).granted
        });
        let drawn = drawn.count();
        assert!(drawn <= 10_000, "{drawn} of subject {subject}");
        assert!(
            subject > 0 || drawn == 10_000,
            "the first has all of its own"
        );
    }
    bench.keeps_to_the_cap();
}

/// A store that is full of others' permits.
fn full() -> PermitFixture {
    let bench = PermitFixture::new();
    for subject in 1_000..151_000 {
        bench.acquire(subject, subject, 10_000);
    }
    bench
}

#[test]
fn no_subject_exceeds_its_limit_wherever_its_permits_are() {
    let bench = full();
    // In 16 crowds there are many: with a limit of 5 all of them are full by now.
    for subject in [7, 1_000, 1_001, 150_999] {
        let drawn = (0..20).filter(|n| bench.acquire(subject, 1 << 40 | n, 5).granted);
        assert!(drawn.count() <= 5, "{subject}");
    }
    // Others share what is left, so a large limit has room.
    assert!(bench.acquire(7, 1, 100_000).granted);
}

#[test]
fn a_permit_that_is_only_counted_is_renewed_by_another_and_ends_by_itself() {
    let bench = full();
    let held = bench.acquire(7, 1, 100_000);
    assert_eq!((held.granted, held.source), (true, Source::Overflow));
    assert!(bench.renew(7, 1, 100_000));
    assert!(!bench.renew(7, 1, 5), "the crowd is full");
    let before = bench.acquire(7, 2, 100_000).in_use;
    bench.release(7, 1);
    let after = bench.acquire(7, 3, 100_000).in_use;
    assert_eq!(after, before + 1, "nobody knows whose it was");
    bench.clock.advance(Nanos::new(2 * LASTS.get() + 1_000_000));
    let held = bench.acquire(7, 4, 5);
    assert_eq!((held.granted, held.in_use), (true, 1));
}

/// What a list takes is given back as permits leave, in whatever order.
#[test]
fn lists_that_grow_and_shrink_leave_no_bytes_behind() {
    let bench = PermitFixture::new();
    let mut begun = None;
    for round in 0..5_u64 {
        for n in 0..3_000 {
            assert!(bench.acquire(n % 3, n, 10_000).granted);
        }
        for n in 0..3_000 {
            let holder = (n * (2 * round + 1) * 7) % 3_000;
            (0..3).for_each(|subject| bench.release(subject, holder));
        }
        (0..3_000).for_each(|n| bench.release(n % 3, n));
        let stats = bench.store.stats();
        assert_eq!(stats.keys, 0, "round {round}");
        assert_eq!(
            stats.bytes,
            *begun.get_or_insert(stats.bytes),
            "round {round}"
        );
    }
}
