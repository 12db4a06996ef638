//! Permits in a store that cannot grow: they stay within the cap, every subject stays within its limit, and new
//! subjects are not locked out.

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::store::{PermitReply, PermitRequest, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

const CAP: u64 = 4 << 20;
const TTL: Nanos = Nanos::from_secs(60);

struct PermitFixture {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    rule: RuleName,
}

impl PermitFixture {
    fn new() -> Self {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        PermitFixture { store: MemoryStore::with_cap(clock.clone(), CAP), clock, rule: RuleName::new("open") }
    }

    fn permit(&self, subject: u64, holder: u64, max_permits: u32) -> PermitRequest<'_> {
        let spread = subject.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        PermitRequest {
            subject: Fingerprint::new((u128::from(spread) << 64) | u128::from(spread >> 7)),
            rule: &self.rule,
            holder: u128::from(holder),
            max_permits,
            ttl: TTL,
            options: &RuleOptions::DEFAULT,
            max_wait: None,
        }
    }

    fn acquire(&self, subject: u64, holder: u64, max_permits: u32) -> PermitReply {
        let permit = self.permit(subject, holder, max_permits);
        self.store.acquire_at(&permit, self.clock.now())
    }

    fn renew(&self, subject: u64, holder: u64, max_permits: u32) -> bool {
        let permit = self.permit(subject, holder, max_permits);
        self.store.renew_at(&permit, self.clock.now()).granted
    }

    fn release(&self, subject: u64, holder: u64) {
        let permit = self.permit(subject, holder, 0);
        self.store.release_at(&permit, self.clock.now());
    }

    #[track_caller]
    fn assert_within_cap(&self) {
        let stats = self.store.stats();
        // Entries of counted permits are few, and written even beyond the cap.
        assert!(stats.bytes <= stats.cap + (64 << 10), "{stats:?}");
        assert!(stats.bytes <= CAP, "{stats:?}");
    }
}

/// The memory of permits was counted and never limited: a 16 MiB store held 48 MB of them.
#[test]
fn permits_of_many_subjects_stay_within_the_cap_and_every_new_subject_gets_one() {
    let fixture = PermitFixture::new();
    let mut by = [0; 2];
    for subject in 0..150_000 {
        let reply = fixture.acquire(subject, subject, 10_000);
        assert!(reply.granted, "{subject}");
        by[usize::from(reply.source == Source::Overflow)] += 1;
    }
    fixture.assert_within_cap();
    assert!(by[0] > 15_000, "{by:?} have a list of their own and share");
    assert!(by[1] > 50_000, "{by:?}");
    fixture.clock.advance(Nanos::new(2 * TTL.get() + 1_000_000_000));
    while fixture.store.sweep(usize::MAX) > 0 {}
    assert_eq!(fixture.store.stats().keys, 0);
    assert_eq!(fixture.acquire(7, 7, 1).source, Source::Exact, "room again");
}

/// The memory of permits was not limited either if all were of one subject, or of a few.
#[test]
fn permits_of_few_subjects_stay_within_the_cap_and_the_limit() {
    let fixture = PermitFixture::new();
    for subject in 0..20 {
        let granted = (0..10_050).filter(|n| {
            let holder = subject * 100_000 + n;
            fixture.acquire(subject, holder, 10_000).granted
        });
        let granted = granted.count();
        assert!(granted <= 10_000, "{granted} of subject {subject}");
        assert!(subject > 0 || granted == 10_000, "the first has all of its permits");
    }
    fixture.assert_within_cap();
}

/// A store that is full of other subjects' permits.
fn full() -> PermitFixture {
    let fixture = PermitFixture::new();
    for subject in 1_000..151_000 {
        fixture.acquire(subject, subject, 10_000);
    }
    fixture
}

#[test]
fn no_subject_exceeds_its_limit_wherever_its_permits_are_stored() {
    let fixture = full();
    // The 16 counts of permits are high: with a limit of 5 all of them are full by now.
    for subject in [7, 1_000, 1_001, 150_999] {
        let granted = (0..20).filter(|n| fixture.acquire(subject, 1 << 40 | n, 5).granted);
        assert!(granted.count() <= 5, "{subject}");
    }
    // All subjects there share the rest, so a large limit has room.
    assert!(fixture.acquire(7, 1, 100_000).granted);
}

#[test]
fn a_counted_permit_is_renewed_as_another_and_expires() {
    let fixture = full();
    let reply = fixture.acquire(7, 1, 100_000);
    assert_eq!((reply.granted, reply.source), (true, Source::Overflow));
    assert!(fixture.renew(7, 1, 100_000));
    assert!(!fixture.renew(7, 1, 5), "the count is at the limit");
    let before = fixture.acquire(7, 2, 100_000).in_use;
    fixture.release(7, 1);
    let after = fixture.acquire(7, 3, 100_000).in_use;
    assert_eq!(after, before + 1, "its holder is unknown");
    fixture.clock.advance(Nanos::new(2 * TTL.get() + 1_000_000));
    let reply = fixture.acquire(7, 4, 5);
    assert_eq!((reply.granted, reply.in_use), (true, 1));
}

/// The memory of a list is freed as permits are released, in whatever order.
#[test]
fn lists_that_grow_and_shrink_leak_no_bytes() {
    let fixture = PermitFixture::new();
    let mut begun = None;
    for round in 0..5_u64 {
        for n in 0..3_000 {
            assert!(fixture.acquire(n % 3, n, 10_000).granted);
        }
        for n in 0..3_000 {
            let holder = (n * (2 * round + 1) * 7) % 3_000;
            (0..3).for_each(|subject| fixture.release(subject, holder));
        }
        (0..3_000).for_each(|n| fixture.release(n % 3, n));
        let stats = fixture.store.stats();
        assert_eq!(stats.keys, 0, "round {round}");
        assert_eq!(stats.bytes, *begun.get_or_insert(stats.bytes), "round {round}");
    }
}
