//! The permits of concurrency limits that this node has granted, so that they survive a loss of the store.
//!
//! A permit is `Synced` (the store knows it), `LocalOnly` (granted or renewed without the store) or `Releasing`
//! (released; the store may still count it). Events: `record_acquired` (to `Synced`), `acquire` and `renew` (to
//! `LocalOnly`), `begin_release` (to `Releasing`), `released` and expiry (removed). `unsynced` lists the permits to
//! sync.
//!
//! A permit is `Local` once it was granted or renewed without the store, or while the store had more than the limit:
//! then some are local, and it may be one of them. Local permits are saved over a restart (`local_permits`,
//! `restore`), because they count toward this node's share in every outage until they expire.
//!
//! Invariants: a permit expires here no later than in the store, because its TTL starts before the store is called;
//! a released permit is not open, and is remembered (`released_permits`) until other nodes have forgotten it. Bounded: a permit beyond the bound is known to the store alone. A call finds its
//! permit by holder and walks no others, however many are open. Knows no store; time is injected.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tidegate_core::store::{Degraded, PermitReply, PermitRequest, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::SweepSchedule;
use tidegate_core::units::Nanos;

use crate::permit_set::PermitSet;
use crate::shard::node::local_admissions::LocalPermit;
use crate::shard::node::released_permits::ReleasedPermits;

/// The permits of this node.
pub(crate) struct OpenPermits {
    table: Mutex<PermitTable>,
    max: usize,
}

#[derive(Default)]
struct PermitTable {
    by_counter: BTreeMap<u128, CounterPermits>,
    count: usize,
    /// Counter and holder of the permits that the store must be updated about.
    unsynced: BTreeSet<(u128, u128)>,
    /// The permits that the store has released for this node.
    released: ReleasedPermits,
    /// When expired permits of all counters are swept.
    sweep: SweepSchedule,
    /// How often a local permit was inserted, changed or removed before its expiry.
    changes: u64,
}

/// The permits of one subject under one rule.
struct CounterPermits {
    subject: Fingerprint,
    rule: RuleName,
    options: RuleOptions,
    permits: PermitSet<KnownPermit>,
    /// How many of them are being released.
    releasing: usize,
}

impl CounterPermits {
    /// The number of open permits.
    fn open_count(&self) -> u32 {
        u32::try_from(self.permits.len() - self.releasing).unwrap_or(u32::MAX)
    }
}

/// What is known of a permit beside its expiry.
#[derive(Clone, Copy, Debug)]
struct KnownPermit {
    sync: PermitSync,
    origin: PermitOrigin,
    /// When the store granted or renewed it, by the store's clock; `MAX` if that is unknown or it did not.
    granted_at: Nanos,
}

/// Whether a permit counts toward this node's share after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PermitOrigin {
    /// No: the store granted it.
    Store,
    /// Yes.
    Local,
    /// Yes, and it is from before the last restart. The store may know better.
    Restored,
}

/// What the store knows of a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitSync {
    /// The store knows it is open, until the same time as this node.
    Synced,
    /// The store does not know it, or knows an earlier end: it was granted or renewed without the store.
    LocalOnly,
    /// It was released, and the store may still count it as open.
    Releasing,
}

impl KnownPermit {
    fn is_local(self) -> bool {
        self.origin != PermitOrigin::Store
    }
}

/// A permit that was granted or renewed without the store.
const LOCAL: KnownPermit =
    KnownPermit { sync: PermitSync::LocalOnly, origin: PermitOrigin::Local, granted_at: Nanos::MAX };

/// A permit that the store must be updated about.
#[derive(Clone, Debug)]
pub(crate) struct PermitUpdate {
    pub(crate) subject: Fingerprint,
    rule: RuleName,
    options: RuleOptions,
    holder: u128,
    remaining: Nanos,
    /// Whether it was released.
    pub(crate) releasing: bool,
}

impl PermitUpdate {
    /// The request that registers the permit, however many others are open: it is in use.
    pub(crate) fn permit_request(&self) -> PermitRequest<'_> {
        PermitRequest {
            subject: self.subject,
            rule: &self.rule,
            holder: self.holder,
            max_permits: u32::MAX,
            ttl: self.remaining,
            options: &self.options,
            max_wait: None,
        }
    }
}

impl OpenPermits {
    pub(crate) fn new(max: usize) -> Self {
        OpenPermits { table: Mutex::default(), max }
    }

    /// The store has granted or renewed a permit by its time `at`, by a call sent at `sent`, and has `in_use` permits of
    /// the counter.
    pub(crate) fn record_acquired(&self, permit: &PermitRequest<'_>, in_use: u32, sent: Nanos, at: Nanos) {
        let origin = if in_use > permit.max_permits { PermitOrigin::Local } else { PermitOrigin::Store };
        let known = KnownPermit { sync: PermitSync::Synced, origin, granted_at: at };
        self.table.lock().insert(permit, sent, sent.plus(permit.ttl), known, self.max);
    }

    /// Grants or renews a permit without the store, if fewer than `share` are open here.
    pub(crate) fn acquire(&self, permit: &PermitRequest<'_>, share: u32, now: Nanos) -> PermitReply {
        let mut table = self.table.lock();
        let (open, own) = table.find(permit, now);
        let has = own.is_some_and(|(_, sync)| sync != PermitSync::Releasing);
        let until = now.plus(permit.ttl);
        let granted = (has || open < share) && table.insert(permit, now, until, LOCAL, self.max);
        permit_reply(granted, open + u32::from(granted && !has))
    }

    /// Renews a permit without the store; `None` if this node does not know it.
    pub(crate) fn renew(&self, permit: &PermitRequest<'_>, now: Nanos) -> Option<PermitReply> {
        let mut table = self.table.lock();
        let (open, own) = table.find(permit, now);
        let is_open = own?.1 != PermitSync::Releasing;
        let granted = is_open && table.insert(permit, now, now.plus(permit.ttl), LOCAL, self.max);
        Some(permit_reply(granted, open))
    }

    /// A permit is released, and the store must be updated. It may also have granted one whose reply this node did not
    /// receive.
    pub(crate) fn begin_release(&self, permit: &PermitRequest<'_>, now: Nanos) {
        let mut table = self.table.lock();
        let (_, own) = table.find(permit, now);
        let until = own.map_or(now.plus(permit.ttl), |(until, _)| until);
        let known = KnownPermit { sync: PermitSync::Releasing, origin: PermitOrigin::Store, granted_at: Nanos::MAX };
        table.insert(permit, now, until, known, self.max);
    }

    /// The store has released a permit by its time `at`. Another node that granted or renewed the permit does not know.
    pub(crate) fn record_released(&self, permit: &PermitRequest<'_>, at: Nanos, now: Nanos) {
        let mut table = self.table.lock();
        table.remove(permit);
        table.released.insert(permit, at, now, self.max);
    }

    /// The store knows that a permit is not open.
    pub(crate) fn remove(&self, permit: &PermitRequest<'_>) {
        self.table.lock().remove(permit);
    }

    /// Lists the permits released at this node for which `is_missing` returns true as unsynced, by subject and the
    /// store's time of the release.
    pub(crate) fn release_again(&self, is_missing: impl Fn(Fingerprint, Nanos) -> bool) {
        self.table.lock().released.mark_unsynced(is_missing);
    }

    /// The permits of all holders of a counter were freed.
    pub(crate) fn forget(&self, counter: u128) {
        let mut table = self.table.lock();
        if let Some(of_counter) = table.by_counter.remove(&counter) {
            table.count -= of_counter.permits.len();
            for (holder, _, known) in of_counter.permits.iter() {
                table.unsynced.remove(&(counter, holder));
                table.changes += u64::from(known.is_local());
            }
        }
    }

    /// Whether a permit is open that the store may not know.
    pub(crate) fn is_local_only(&self, permit: &PermitRequest<'_>, now: Nanos) -> bool {
        let (_, own) = self.table.lock().find(permit, now);
        own.is_some_and(|(_, sync)| sync == PermitSync::LocalOnly)
    }

    /// Whether a permit is open, as far as this node knows.
    pub(crate) fn is_open(&self, permit: &PermitRequest<'_>, now: Nanos) -> bool {
        let (_, own) = self.table.lock().find(permit, now);
        own.is_some_and(|(_, sync)| sync != PermitSync::Releasing)
    }

    /// How often `local_permits` changed otherwise than by time.
    pub(crate) fn changes(&self) -> u64 {
        self.table.lock().changes
    }

    /// All local permits, to be saved. `wall_time` converts an expiry.
    pub(crate) fn local_permits(&self, now: Nanos, wall_time: impl Fn(Nanos) -> Nanos) -> Vec<LocalPermit> {
        let table = self.table.lock();
        let permits = table.by_counter.values().flat_map(|of_counter| {
            let local = of_counter.permits.iter().filter(|(_, until, known)| known.is_local() && *until > now);
            local.map(|(holder, until, known)| LocalPermit {
                subject: of_counter.subject,
                rule: of_counter.rule.clone(),
                holder,
                until: wall_time(until),
                sync: known.sync,
            })
        });
        permits.collect()
    }

    /// Restores a local permit from before a restart.
    pub(crate) fn restore(&self, permit: &PermitRequest<'_>, sync: PermitSync, now: Nanos) {
        let known = KnownPermit { sync, origin: PermitOrigin::Restored, granted_at: Nanos::MAX };
        self.table.lock().insert(permit, now, now.plus(permit.ttl), known, self.max);
    }

    /// The open permits for which `is_missing` returns true, by subject and the store's time of the grant: those that a
    /// store may have lost.
    pub(crate) fn open_permits(
        &self,
        is_missing: impl Fn(Fingerprint, Nanos) -> bool,
        now: Nanos,
    ) -> Vec<PermitUpdate> {
        let table = self.table.lock();
        let updates = table.by_counter.values().flat_map(|of_counter| {
            let permits = of_counter.permits.iter();
            let missing = permits.filter(|(_, _, known)| is_missing(of_counter.subject, known.granted_at));
            missing.filter_map(|(holder, ..)| of_counter.update_of(holder, now))
        });
        updates.filter(|update| !update.releasing).collect()
    }

    /// Whether any permit for which `is_missing` returns true was acquired or renewed since the last restart and is
    /// open, or was released.
    pub(crate) fn any_own(&self, is_missing: impl Fn(Fingerprint, Nanos) -> bool, now: Nanos) -> bool {
        let table = self.table.lock();
        let any_open = table.by_counter.values().any(|of_counter| {
            of_counter.permits.iter().any(|(_, until, known)| {
                let open = until > now && known.sync != PermitSync::Releasing;
                let own = open && known.origin != PermitOrigin::Restored;
                own && is_missing(of_counter.subject, known.granted_at)
            })
        });
        any_open || table.released.any(is_missing)
    }

    /// All permits that the store must be updated about. Walks no others.
    pub(crate) fn unsynced(&self, in_store: impl Fn(Fingerprint) -> bool, now: Nanos) -> Vec<PermitUpdate> {
        let table = self.table.lock();
        let updates = table.unsynced.iter().filter_map(|(counter, holder)| {
            let of_counter = table.by_counter.get(counter).filter(|known| in_store(known.subject))?;
            of_counter.update_of(*holder, now)
        });
        let released = table.released.unsynced().filter(|(_, known)| in_store(known.subject) && known.until > now);
        let released = released.map(|(holder, known)| PermitUpdate {
            subject: known.subject,
            rule: known.rule.clone(),
            options: RuleOptions::DEFAULT,
            holder,
            remaining: known.until.since(now),
            releasing: true,
        });
        updates.chain(released).collect()
    }
}

impl CounterPermits {
    fn update_of(&self, holder: u128, now: Nanos) -> Option<PermitUpdate> {
        let (until, known) = self.permits.get(holder).filter(|(until, _)| *until > now)?;
        Some(PermitUpdate {
            subject: self.subject,
            rule: self.rule.clone(),
            options: self.options,
            holder,
            remaining: until.since(now),
            releasing: known.sync == PermitSync::Releasing,
        })
    }
}

impl PermitTable {
    /// The number of open permits of the counter, and the expiry and state of the holder's own permit.
    fn find(&mut self, permit: &PermitRequest<'_>, now: Nanos) -> (u32, Option<(Nanos, PermitSync)>) {
        let counter = permit.counter();
        self.expire_counter(counter, now);
        let Some(of_counter) = self.by_counter.get(&counter) else {
            return (0, None);
        };
        let own = of_counter.permits.get(permit.holder);
        (of_counter.open_count(), own.map(|(until, known)| (until, known.sync)))
    }

    /// Removes the expired permits of a counter.
    fn expire_counter(&mut self, counter: u128, now: Nanos) {
        while let Some(of_counter) = self.by_counter.get_mut(&counter)
            && let Some((holder, known)) = of_counter.permits.pop_ended(now)
        {
            self.on_removed(counter, holder, known.sync);
        }
    }

    /// Inserts or updates a permit; false if there is no room.
    fn insert(&mut self, permit: &PermitRequest<'_>, now: Nanos, until: Nanos, known: KnownPermit, max: usize) -> bool {
        let (counter, holder) = (permit.counter(), permit.holder);
        let before = self.by_counter.get(&counter).and_then(|of_counter| of_counter.permits.get(holder));
        let before = before.map(|(_, before)| *before);
        let has = before.is_some();
        let was_local = before.is_some_and(KnownPermit::is_local);
        let known = KnownPermit { origin: if was_local { PermitOrigin::Local } else { known.origin }, ..known };
        if !has && self.sweep.is_due(self.count, max, now) {
            self.sweep_ended(now);
        }
        if !has && self.count >= max {
            return false;
        }
        let of_counter = self.by_counter.entry(counter).or_insert_with(|| CounterPermits {
            subject: permit.subject,
            rule: permit.rule.clone(),
            options: *permit.options,
            permits: PermitSet::default(),
            releasing: 0,
        });
        match of_counter.permits.put(holder, until, known) {
            Some(before) => of_counter.releasing -= usize::from(before.sync == PermitSync::Releasing),
            None => self.count += 1,
        }
        of_counter.releasing += usize::from(known.sync == PermitSync::Releasing);
        self.changes += u64::from(known.is_local());
        self.released.remove((counter, holder));
        if known.sync == PermitSync::Synced {
            self.unsynced.remove(&(counter, holder));
        } else {
            self.unsynced.insert((counter, holder));
        }
        self.sweep.record_expiry(until);
        true
    }

    fn remove(&mut self, permit: &PermitRequest<'_>) {
        let (counter, holder) = (permit.counter(), permit.holder);
        let of_counter = self.by_counter.get_mut(&counter);
        if let Some(known) = of_counter.and_then(|of_counter| of_counter.permits.remove(holder)) {
            self.changes += u64::from(known.is_local());
            self.on_removed(counter, holder, known.sync);
        }
    }

    /// Updates the totals after a permit was removed from its counter.
    fn on_removed(&mut self, counter: u128, holder: u128, sync: PermitSync) {
        self.count -= 1;
        self.unsynced.remove(&(counter, holder));
        if let Some(of_counter) = self.by_counter.get_mut(&counter) {
            of_counter.releasing -= usize::from(sync == PermitSync::Releasing);
            if of_counter.permits.is_empty() {
                self.by_counter.remove(&counter);
            }
        }
    }

    fn sweep_ended(&mut self, now: Nanos) {
        let counters: Vec<u128> = self.by_counter.keys().copied().collect();
        for counter in counters {
            self.expire_counter(counter, now);
        }
        let left = self.by_counter.values().flat_map(|of_counter| of_counter.permits.iter());
        self.sweep.swept(left.map(|(_, until, _)| until), now);
    }
}

fn permit_reply(granted: bool, open: u32) -> PermitReply {
    let degraded = Some(Degraded::StoreUnavailable);
    PermitReply { granted, in_use: open, source: Source::Fallback, degraded }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    fn request(rule: &RuleName, holder: u128) -> PermitRequest<'_> {
        PermitRequest {
            subject: Fingerprint::new(1),
            rule,
            holder,
            max_permits: 10,
            ttl: AT(10),
            options: &RuleOptions::DEFAULT,
            max_wait: None,
        }
    }

    /// The updates for the store: holder, and whether the permit was released.
    fn unsynced(permits: &OpenPermits, now: Nanos) -> Vec<(u128, bool)> {
        let updates = permits.unsynced(|_| true, now).into_iter();
        updates.map(|update| (update.holder, update.releasing)).collect()
    }

    #[test]
    fn permits_granted_by_the_store_count_toward_the_share() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 1, AT(0), AT(0));
        assert!(permits.acquire(&request(&rule, 2), 2, AT(1)).granted);
        let third = permits.acquire(&request(&rule, 3), 2, AT(1));
        assert_eq!((third.granted, third.in_use), (false, 2));
        assert!(permits.acquire(&request(&rule, 2), 2, AT(1)).granted, "has one");
        // The permit of the store expires first: its TTL started when the store was called.
        assert!(permits.acquire(&request(&rule, 3), 2, AT(10)).granted);
    }

    /// The local permits: holder, and what the store knows.
    fn local(permits: &OpenPermits, now: Nanos) -> Vec<(u128, PermitSync)> {
        let local = permits.local_permits(now, |until| until).into_iter();
        local.map(|permit| (permit.holder, permit.sync)).collect()
    }

    #[test]
    fn permits_granted_without_the_store_are_saved_until_they_expire() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 1, AT(0), AT(0));
        permits.acquire(&request(&rule, 2), 9, AT(1));
        let changes = permits.changes();
        assert_eq!(local(&permits, AT(1)), [(2, PermitSync::LocalOnly)]);
        permits.record_acquired(&request(&rule, 2), 2, AT(2), AT(2));
        assert_eq!(local(&permits, AT(2)), [(2, PermitSync::Synced)]);
        assert!(permits.changes() > changes);
        // The store has eleven of ten: any of them may be local.
        permits.record_acquired(&request(&rule, 1), 11, AT(3), AT(3));
        assert_eq!(local(&permits, AT(3)), [(1, PermitSync::Synced), (2, PermitSync::Synced)]);
        permits.remove(&request(&rule, 1));
        assert_eq!(local(&permits, AT(3)), [(2, PermitSync::Synced)]);
        assert_eq!(local(&permits, AT(12)), []);
    }

    #[test]
    fn restored_permits_count_toward_the_share_and_are_no_proof_of_a_loss() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.restore(&request(&rule, 1), PermitSync::Synced, AT(0));
        permits.restore(&request(&rule, 2), PermitSync::LocalOnly, AT(0));
        assert_eq!(unsynced(&permits, AT(1)), [(2, false)]);
        assert!(!permits.acquire(&request(&rule, 3), 2, AT(1)).granted);
        assert!(!permits.any_own(|_, _| true, AT(1)));
        assert_eq!(permits.open_permits(|_, _| true, AT(1)).len(), 2);
        permits.record_acquired(&request(&rule, 1), 2, AT(5), AT(5));
        assert!(permits.any_own(|_, _| true, AT(5)));
        assert!(permits.acquire(&request(&rule, 3), 2, AT(10)).granted, "one has expired");
    }

    /// Permits of the store are not saved: nothing is written while it is up.
    #[test]
    fn permits_of_the_store_change_nothing_that_is_saved() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 10, AT(0), AT(0));
        permits.begin_release(&request(&rule, 1), AT(1));
        permits.remove(&request(&rule, 1));
        assert_eq!((permits.changes(), local(&permits, AT(0))), (0, vec![]));
    }

    #[test]
    fn only_changes_made_without_the_store_are_synced() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 1, AT(0), AT(0));
        permits.record_acquired(&request(&rule, 2), 2, AT(0), AT(0));
        assert_eq!(unsynced(&permits, AT(1)), []);
        permits.acquire(&request(&rule, 3), 9, AT(1));
        permits.renew(&request(&rule, 1), AT(1));
        permits.begin_release(&request(&rule, 2), AT(1));
        assert_eq!(unsynced(&permits, AT(2)), [(1, false), (2, true), (3, false)]);
        permits.remove(&request(&rule, 2));
        permits.record_acquired(&request(&rule, 1), 2, AT(2), AT(2));
        permits.record_acquired(&request(&rule, 3), 3, AT(2), AT(2));
        assert_eq!(unsynced(&permits, AT(2)), []);
        assert_eq!(permits.open_permits(|_, _| true, AT(2)).len(), 2);
    }

    /// Every permit that was released at another node came back after any restart of the store, and stayed until its
    /// TTL was over.
    #[test]
    fn only_permits_that_the_store_may_have_lost_are_restored_or_released_again() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 1, AT(0), AT(100));
        permits.record_acquired(&request(&rule, 2), 2, AT(1), AT(101));
        permits.acquire(&request(&rule, 3), 9, AT(1));
        let since = |since| move |_: Fingerprint, at: Nanos| at >= AT(since);
        let restored = |missing_since| {
            let missing = permits.open_permits(since(missing_since), AT(2)).into_iter();
            missing.map(|update| update.holder).collect::<Vec<u128>>()
        };
        assert_eq!(restored(101), [2, 3]);
        assert_eq!(restored(200), [3], "the store never knew it");
        for holder in [1, 2, 3] {
            permits.begin_release(&request(&rule, holder), AT(2));
            permits.record_released(&request(&rule, holder), AT(100 + u64::try_from(holder).unwrap()), AT(2));
        }
        assert_eq!((unsynced(&permits, AT(2)), permits.any_own(since(104), AT(2))), (vec![], false));
        assert!(permits.any_own(since(103), AT(2)));
        permits.release_again(since(102));
        assert_eq!(unsynced(&permits, AT(2)), [(2, true), (3, true)]);
        permits.record_acquired(&request(&rule, 3), 1, AT(3), AT(103));
        assert_eq!(unsynced(&permits, AT(3)), [(2, true)], "the other was acquired again");
        permits.record_released(&request(&rule, 2), AT(104), AT(4));
        assert_eq!(unsynced(&permits, AT(4)), []);
        permits.release_again(since(0));
        assert_eq!(unsynced(&permits, AT(11)), [(1, true), (2, true)]);
        assert_eq!(unsynced(&permits, AT(12)), [(2, true)], "expired at every node");
    }

    #[test]
    fn a_full_table_of_releases_evicts_the_first_to_expire() {
        let (permits, rule) = (OpenPermits::new(2), RuleName::new("r"));
        for (holder, now) in [(3, 0), (2, 1), (1, 2)] {
            permits.record_released(&request(&rule, holder), AT(0), AT(now));
        }
        permits.release_again(|_, _| true);
        assert_eq!(unsynced(&permits, AT(2)), [(1, true), (2, true)]);
        assert!(permits.acquire(&request(&rule, 4), 1, AT(2)).granted, "releases take no room of permits");
    }

    #[test]
    fn a_released_or_expired_permit_is_not_renewed() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        permits.record_acquired(&request(&rule, 1), 1, AT(0), AT(0));
        permits.begin_release(&request(&rule, 1), AT(1));
        let late = permits.renew(&request(&rule, 1), AT(2));
        assert!(late.is_some_and(|permit_reply| !permit_reply.granted && permit_reply.in_use == 0));
        permits.record_acquired(&request(&rule, 2), 2, AT(0), AT(0));
        assert_eq!(permits.renew(&request(&rule, 2), AT(10)), None);
    }

    /// Every call walked all of a full table, under the lock of all.
    #[test]
    fn a_full_table_is_swept_only_when_a_permit_has_expired() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        let due = |now| permits.table.lock().sweep.is_due(100, 100, now);
        for holder in 0..100 {
            assert!(permits.acquire(&request(&rule, holder), 1_000, AT(5)).granted);
        }
        assert!(!permits.acquire(&request(&rule, 100), 1_000, AT(6)).granted);
        assert!(!due(AT(14)));
        assert!(due(AT(15)));
    }

    /// With a scan of all permits the second is a hundred times as much work.
    #[test]
    fn a_renewal_costs_about_the_same_however_many_permits_are_open() {
        let rule = RuleName::new("r");
        let work = |permits: u128| {
            let open = OpenPermits::new(100_000);
            for holder in 0..permits {
                assert!(open.acquire(&request(&rule, holder), 100_000, AT(0)).granted);
            }
            tidegate_fuzz_inputs::work_units(|| {
                for holder in (0..permits).step_by(usize::try_from(permits / 100).unwrap()) {
                    assert!(open.renew(&request(&rule, holder), AT(1)).is_some());
                }
            })
        };
        let (few, many) = (work(100), work(10_000));
        assert!(many < 10.0 * few, "{few} yardsticks for 100, {many} for 10,000");
    }

    #[test]
    fn expired_permits_make_room() {
        let (permits, rule) = (OpenPermits::new(100), RuleName::new("r"));
        for round in 0..10 {
            let now = AT(round * 20);
            let granted = |holder| permits.acquire(&request(&rule, holder), 1_000, now).granted;
            let granted_count = (0..150).filter(|holder| granted(*holder)).count();
            assert_eq!(granted_count, 100);
            // Permits of other counters have expired too, though no call names them.
            let other = PermitRequest { subject: Fingerprint::new(u128::from(round) + 2), ..request(&rule, 1) };
            assert!(permits.acquire(&other, 1, now.plus(AT(10))).granted);
        }
    }
}
