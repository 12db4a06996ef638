//! Adaptive concurrency limits, which this node finds by itself for each rule and subject.
//!
//! Invariant: a permit that is never released expires and is no sample, because the duration of its request is
//! unknown. The table is bounded twice. Subjects beyond the first bound share limits of their rule, one in 256
//! each, so that they are limited in small groups and not locked out together. Permits beyond the second bound are
//! only counted, in the [`CountedPermits`] of their limit. Knows no store: other nodes find limits of their own.

mod gradient;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::SweepSchedule;
use tidegate_core::units::Nanos;

pub use self::gradient::Gradient;
use crate::counted_permits::CountedPermits;

/// Maximum of subjects with a limit of their own.
pub const MAX_ADAPTIVE_SUBJECTS: usize = 10_000;
/// Maximum of permits that are remembered by holder.
pub const MAX_ADAPTIVE_PERMITS: usize = 100_000;
/// Limits of a rule shared by subjects without a limit of their own.
const SHARED_LIMITS: u64 = 256;
/// Approximate memory of a limit and of a permit.
const LIMIT_BYTES: u64 = 640;
const PERMIT_BYTES: u64 = 64;

/// The adaptive limits of this node.
#[derive(Debug, Default)]
pub(crate) struct Adaptive(Mutex<AdaptiveTable>);

#[derive(Debug)]
struct AdaptiveTable {
    max_subjects: usize,
    max_permits: usize,
    limits: BTreeMap<u128, AdaptiveLimit>,
    /// Permits of all limits that are remembered by holder.
    permits: usize,
    /// When to evict subjects without open permits.
    sweep: SweepSchedule,
}

impl Default for AdaptiveTable {
    fn default() -> Self {
        AdaptiveTable {
            max_subjects: MAX_ADAPTIVE_SUBJECTS,
            max_permits: MAX_ADAPTIVE_PERMITS,
            limits: BTreeMap::new(),
            permits: 0,
            sweep: SweepSchedule::default(),
        }
    }
}

/// The limit and the open permits of one rule and subject.
#[derive(Debug)]
struct AdaptiveLimit {
    rule: RuleName,
    gradient: Gradient,
    open: BTreeMap<u128, OpenPermit>,
    /// Permits without a holder, as the words of a [`CountedPermits`].
    counted: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct OpenPermit {
    since: Nanos,
    until: Nanos,
}

/// The result of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AdaptiveOutcome {
    pub(crate) granted: bool,
    pub(crate) open: u32,
    pub(crate) limit: u32,
}

impl Adaptive {
    /// Limits and permits that take about `bytes` at most.
    pub(crate) fn with_memory_cap(bytes: u64) -> Self {
        let count = |each: u64, max: usize| {
            let fit = usize::try_from(bytes / 2 / each).unwrap_or(max);
            fit.clamp(1, max)
        };
        Adaptive(Mutex::new(AdaptiveTable {
            max_subjects: count(LIMIT_BYTES, MAX_ADAPTIVE_SUBJECTS),
            max_permits: count(PERMIT_BYTES, MAX_ADAPTIVE_PERMITS),
            ..AdaptiveTable::default()
        }))
    }

    /// Acquires a permit until `until`.
    pub(crate) fn acquire(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        holder: u128,
        now: Nanos,
        until: Nanos,
    ) -> AdaptiveOutcome {
        let mut table = self.0.lock();
        let counter = table.find_or_insert(rule, subject, now);
        table.acquire(counter, holder, now, until)
    }

    /// Extends a permit until `until`. Returns whether it was there.
    pub(crate) fn renew(&self, rule: &RuleName, subject: Fingerprint, holder: u128, now: Nanos, until: Nanos) -> bool {
        let own = |entry: &mut AdaptiveLimit| {
            let open = entry.open.get_mut(&holder);
            let open = open.filter(|open| open.until > now);
            open.map(|open| open.until = until)
        };
        if self.find(rule, subject, own).is_some() {
            return true;
        }
        self.0.lock().renew_counted(rule, subject, now, until)
    }

    /// Releases the permit of a finished request, and samples its duration.
    pub(crate) fn release(&self, rule: &RuleName, subject: Fingerprint, holder: u128, now: Nanos) {
        let sampled = self.find(rule, subject, |entry| {
            let in_flight = entry.len();
            let open = entry.open.remove(&holder)?;
            entry.gradient.sample(now.since(open.since), in_flight);
            Some(())
        });
        let _released_before_or_expired = sampled;
    }

    /// Releases the permit of a request that never started.
    pub(crate) fn forget(&self, rule: &RuleName, subject: Fingerprint, holder: u128) {
        let _forgotten = self.find(rule, subject, |entry| entry.open.remove(&holder));
    }

    /// Releases all permits of a subject without a sample. Returns how many were open. Permits of a shared limit
    /// stay.
    pub(crate) fn release_all(&self, rule: &RuleName, subject: Fingerprint, now: Nanos) -> u64 {
        let table = &mut *self.0.lock();
        let Some(entry) = table.limits.get_mut(&rule.counter(subject, 0)) else {
            return 0;
        };
        table.permits -= entry.drop_ended(now);
        table.sweep.record_expiry(Nanos::ZERO); // may be evicted at once
        let freed = entry.open.len();
        table.permits -= freed;
        entry.open.clear();
        freed as u64
    }

    /// The lowest current limit of any subject, for each rule.
    pub(crate) fn limits(&self) -> BTreeMap<String, u32> {
        let table = self.0.lock();
        let mut limits: BTreeMap<&str, u32> = BTreeMap::new();
        for entry in table.limits.values() {
            let limit = entry.gradient.limit();
            let lowest = limits.entry(entry.rule.as_str()).or_insert(limit);
            *lowest = limit.min(*lowest);
        }
        let limits = limits.into_iter();
        limits.map(|(rule, limit)| (rule.to_owned(), limit)).collect()
    }

    /// Searches the permits of a subject: under its own limit, or under the one that it shares.
    fn find<T>(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        mut with: impl FnMut(&mut AdaptiveLimit) -> Option<T>,
    ) -> Option<T> {
        let table = &mut *self.0.lock();
        counters_of(rule, subject).iter().find_map(|counter| {
            let entry = table.limits.get_mut(counter)?;
            let before = entry.open.len();
            let found = with(entry)?;
            table.permits -= before - entry.open.len();
            if entry.open.is_empty() {
                table.sweep.record_expiry(Nanos::ZERO); // may be evicted at once
            }
            Some(found)
        })
    }
}

/// The counters of a subject's own limit and of the limit that it shares if it has none.
fn counters_of(rule: &RuleName, subject: Fingerprint) -> [u128; 2] {
    let shared = Fingerprint::new(u128::from(subject.seed() % SHARED_LIMITS));
    [subject, shared].map(|subject| rule.counter(subject, 0))
}

fn millis(at: Nanos) -> u64 {
    at.get() / 1_000_000
}

impl AdaptiveLimit {
    fn new(rule: &RuleName) -> Self {
        AdaptiveLimit { rule: rule.clone(), gradient: Gradient::default(), open: BTreeMap::new(), counted: [0; 2] }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }

    /// Drops expired permits. Returns how many.
    fn drop_ended(&mut self, now: Nanos) -> usize {
        let before = self.open.len();
        self.open.retain(|_, open| open.until > now);
        before - self.open.len()
    }

    fn counted_permits(&self, now: Nanos) -> CountedPermits {
        CountedPermits::read(self.counted, millis(now))
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.open.is_empty() && self.counted_permits(now).count() == 0
    }
}

impl AdaptiveTable {
    /// Acquires a permit of a limit. A permit that cannot be remembered by holder is only counted.
    fn acquire(&mut self, counter: u128, holder: u128, now: Nanos, until: Nanos) -> AdaptiveOutcome {
        let Some(entry) = self.limits.get_mut(&counter) else {
            return AdaptiveOutcome::default();
        };
        self.permits -= entry.drop_ended(now);
        let mut counted = entry.counted_permits(now);
        let (open, limit) = (entry.len() + counted.count(), entry.gradient.limit());
        let granted = open < limit;
        if granted && self.permits < self.max_permits {
            let before = entry.open.insert(holder, OpenPermit { since: now, until });
            self.permits += usize::from(before.is_none());
            self.sweep.record_expiry(until);
        } else if granted {
            counted.add(millis(until) + 1);
            self.sweep.record_expiry(until);
        }
        entry.counted = counted.words();
        AdaptiveOutcome { granted, open: open + u32::from(granted), limit }
    }

    /// Renews a counted permit. It has no holder, so its renewal counts as another permit.
    fn renew_counted(&mut self, rule: &RuleName, subject: Fingerprint, now: Nanos, until: Nanos) -> bool {
        let counters = counters_of(rule, subject);
        let has_counted = |entry: &&mut AdaptiveLimit| entry.counted_permits(now).count() > 0;
        let own = counters.iter().find(|counter| self.limits.get_mut(counter).filter(has_counted).is_some());
        let Some(entry) = own.and_then(|counter| self.limits.get_mut(counter)) else {
            return false;
        };
        self.permits -= entry.drop_ended(now);
        let mut counted = entry.counted_permits(now);
        let granted = entry.len() + counted.count() < entry.gradient.limit();
        if granted {
            counted.add(millis(until) + 1);
            entry.counted = counted.words();
        }
        granted
    }

    /// Finds or inserts the limit of a subject, or the one that it shares.
    fn find_or_insert(&mut self, rule: &RuleName, subject: Fingerprint, now: Nanos) -> u128 {
        let [own, shared] = counters_of(rule, subject);
        let mut counter = own;
        if self.is_full() && !self.limits.contains_key(&own) {
            if self.sweep.is_due(self.limits.len(), self.max_subjects, now) {
                self.drop_idle(now);
            }
            if self.is_full() {
                counter = shared;
            }
        }
        self.limits.entry(counter).or_insert_with(|| AdaptiveLimit::new(rule));
        counter
    }

    fn is_full(&self) -> bool {
        self.limits.len() >= self.max_subjects
    }

    /// Evicts subjects without open permits: what they have learnt is the least to lose.
    fn drop_idle(&mut self, now: Nanos) {
        self.limits.retain(|_, entry| {
            self.permits -= entry.drop_ended(now);
            !entry.is_idle(now)
        });
        let left = self.limits.values().flat_map(|entry| {
            let end = Nanos::from_millis(entry.counted_permits(now).end_ms());
            let end = (entry.counted_permits(now).count() > 0).then_some(end);
            entry.open.values().map(|open| open.until).chain(end)
        });
        self.sweep.swept(left, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn a_permit_that_is_never_released_expires_and_is_no_sample() {
        let (adaptive, rule, who) = (Adaptive::default(), RuleName::new("r"), Fingerprint::new(7));
        let acquire = |holder, now| adaptive.acquire(&rule, who, holder, AT(now), AT(now + 100));
        for holder in 0..20 {
            assert!(acquire(holder, 0).granted);
        }
        assert!(!acquire(20, 50).granted);
        assert!(adaptive.renew(&rule, who, 3, AT(50), AT(200)));
        let later = acquire(21, 150);
        assert_eq!((later.granted, later.open), (true, 2), "3 was renewed");
        assert!(!adaptive.renew(&rule, who, 4, AT(150), AT(300)));
        adaptive.release(&rule, who, 4, AT(150));
        assert_eq!(adaptive.limits()["r"], 20);
    }

    #[test]
    fn a_full_table_is_swept_only_when_something_has_expired() {
        let (adaptive, rule) = (Adaptive::default(), RuleName::new("r"));
        let due = |now| {
            let table = adaptive.0.lock();
            table.sweep.is_due(MAX_ADAPTIVE_SUBJECTS, MAX_ADAPTIVE_SUBJECTS, AT(now))
        };
        let acquire = |subject: u128| {
            let whose = Fingerprint::new(subject);
            adaptive.acquire(&rule, whose, subject, AT(0), AT(10_000))
        };
        for subject in 1..=u128::try_from(MAX_ADAPTIVE_SUBJECTS).unwrap() + 1 {
            assert!(acquire(subject).granted);
        }
        assert!(!due(9_999));
        assert!(due(10_000));
        adaptive.release(&rule, Fingerprint::new(7), 7, AT(500));
        assert!(due(500), "one subject has no open permit any more");
    }

    /// Ten thousand clients with one permit each shared one limit of 20 with all others: after twenty more
    /// permits the next client was denied.
    #[test]
    fn the_table_is_bounded_and_newcomers_share_limits_in_small_groups() {
        let (adaptive, rule) = (Adaptive::default(), RuleName::new("r"));
        let subjects = u128::try_from(MAX_ADAPTIVE_SUBJECTS).unwrap() + 1_000;
        let acquire = |subject: u128, now| {
            let subject = Fingerprint::new(subject + 1_000);
            adaptive.acquire(&rule, subject, subject.bits(), now, now.plus(AT(100)))
        };
        assert!((0..subjects).all(|subject| acquire(subject, AT(0)).granted));
        let count = adaptive.0.lock().limits.len();
        assert_eq!(count, MAX_ADAPTIVE_SUBJECTS + usize::try_from(SHARED_LIMITS).unwrap());
        let group = |subject: u128| subjects + subject * u128::from(SHARED_LIMITS);
        let granted = (0..100).filter(|subject| acquire(group(*subject), AT(0)).granted);
        assert!((15..=17).contains(&granted.count()), "20 in the group, with 3 or 4 before");
        let last = Fingerprint::new(group(0) + 1_000);
        adaptive.release(&rule, last, last.bits(), AT(1));
        assert!(acquire(group(200), AT(1)).granted, "one of the group is free");
        assert!(acquire(subjects + 1, AT(500)).granted, "room again");
        assert_eq!(adaptive.0.lock().limits.len(), 1);
    }

    /// Permits were bounded by 200 for each of 10,000 subjects: 100 MB beside the cap.
    #[test]
    fn permits_beyond_the_bound_are_counted_without_their_holders() {
        let (adaptive, rule) = (Adaptive::with_memory_cap(4 * 2 * PERMIT_BYTES), RuleName::new("r"));
        assert_eq!(adaptive.0.lock().max_permits, 4);
        let who = Fingerprint::new(1_000);
        let acquire = |holder, now| adaptive.acquire(&rule, who, holder, AT(now), AT(now + 100));
        assert!((0..20).all(|holder| acquire(holder, 0).granted));
        let full = acquire(20, 1);
        assert_eq!((full.granted, full.open), (false, 20));
        assert_eq!(adaptive.0.lock().permits, 4);
        adaptive.release(&rule, who, 3, AT(2));
        adaptive.release(&rule, who, 19, AT(2));
        assert!(acquire(21, 2).granted, "3 was remembered and is free");
        assert!(!acquire(22, 2).granted, "19 was not, and ends by itself");
        assert!(!adaptive.renew(&rule, who, 19, AT(2), AT(102)), "it is full");
        assert!(adaptive.renew(&rule, who, 0, AT(50), AT(150)));
        let later = acquire(23, 110);
        assert_eq!((later.granted, later.open), (true, 2), "all but 0 have ended");
    }
}
