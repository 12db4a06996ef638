//! Permits of concurrency limits. Each expires if its holder dies.
//!
//! A subject without room for a list shares a list of permits with others, like a counter, and stays with it until all
//! of them are released: so it never has two lists at once. When not even a shared list can grow, the permits of a
//! sixteenth of all subjects are only counted, in a [`CountedPermits`]. A subject with counted permits is limited
//! together with the others counted there. So the memory cap holds, and so does the limit of every subject.
//!
//! Lock order: the shard of the subject, then the overflow shard.

use tidegate_core::store::{PermitReply, PermitRequest, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::block::{Block, EntryKind, Secs, TableEntry};
use super::budget::Budget;
use super::counter_io::TimePoint;
use super::key::Key;
use super::overflow::OverflowSubject;
use super::shard::Shard;
use crate::counted_permits::CountedPermits;

/// Separates the keys of permits from those of counters.
const PERMITS_DOMAIN: u128 = 0x736c_6f74_7320_6f66_206f_7065_6e20_776b;

/// The keys of the permits of a subject without its own list, in one overflow shard.
struct SharedPermits {
    shard: usize,
    /// A list that one subject in 4,096 shares.
    list: Key,
    /// Counted permits that one subject in 16 shares.
    counted: Key,
}

impl SharedPermits {
    fn of(permit: &PermitRequest<'_>) -> Self {
        let OverflowSubject { shard, subject } = OverflowSubject::of(permit.subject);
        let key = |subject| Key::within_shard(permit.rule.counter(subject, 0) ^ PERMITS_DOMAIN);
        SharedPermits { shard, list: key(subject), counted: key(OverflowSubject::last_resort(shard)) }
    }
}

/// There is no memory for one more permit.
struct NoMemory;

impl<C> MemoryStore<C> {
    /// Acquires or renews a permit. A denial acquires nothing.
    pub fn acquire_at(&self, permit: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let (at, key) = (self.time_point(now), permits_key(permit));
        let mut own = self.shards[key.shard()].lock();
        let shared_permits = SharedPermits::of(permit);
        if own.find(key).is_some() {
            return self.acquire_own(&mut own, key, &shared_permits, permit, at);
        }
        if !self.overflow.in_use() {
            if let Ok(reply) = self.acquire_in(&mut own, key, permit, at, 0, &self.budget) {
                return reply;
            }
        }
        let mut shared = self.overflow.lock(shared_permits.shard);
        let counted = self.counted(&shared, shared_permits.counted, now).count();
        if count_open(&mut shared, shared_permits.list, now) + counted == 0 {
            if let Ok(reply) = self.acquire_in(&mut own, key, permit, at, 0, &self.budget) {
                return reply;
            }
        }
        let budget = &self.overflow.budget;
        let reply = self.acquire_in(&mut shared, shared_permits.list, permit, at, counted, budget);
        let reply = reply.unwrap_or_else(|NoMemory| {
            let open = count_open(&mut shared, shared_permits.list, now);
            self.add_counted(&mut shared, shared_permits.counted, permit, at, open).0
        });
        self.overflow.mark_used(shared_permits.shard);
        overflow_reply(reply)
    }

    /// The same for a subject with its own list. A permit that does not fit is counted, and until the counted permits
    /// have expired the subject is limited together with the others counted there.
    fn acquire_own(
        &self,
        own: &mut Shard,
        key: Key,
        shared_permits: &SharedPermits,
        permit: &PermitRequest<'_>,
        at: TimePoint,
    ) -> PermitReply {
        let has_counted = counted_until(own, key) > at.now;
        let counted = if has_counted {
            let shared = self.overflow.lock(shared_permits.shard);
            self.counted(&shared, shared_permits.counted, at.now).count()
        } else {
            0
        };
        match self.acquire_in(own, key, permit, at, counted, &self.budget) {
            Ok(reply) if has_counted => overflow_reply(reply),
            Ok(reply) => reply,
            Err(NoMemory) => {
                let open = count_open(own, key, at.now);
                let mut shared = self.overflow.lock(shared_permits.shard);
                let (reply, end) = self.add_counted(&mut shared, shared_permits.counted, permit, at, open);
                self.overflow.mark_used(shared_permits.shard);
                if reply.granted {
                    self.set_counted_until(own, key, end);
                }
                overflow_reply(reply)
            }
        }
    }

    /// Renews a permit, wherever it is. Acquires none, except that a counted permit has no holder, so its renewal
    /// counts as another permit.
    pub fn renew_at(&self, permit: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let (at, key) = (self.time_point(now), permits_key(permit));
        let mut own = self.shards[key.shard()].lock();
        let has_list = own.find(key).is_some();
        let reply = self.extend(&mut own, key, permit, now, |_, new| new, &self.budget);
        let may_be_shared = !has_list || counted_until(&own, key) > now;
        if reply.granted || !may_be_shared || !self.overflow.in_use() {
            return reply;
        }
        let shared_permits = SharedPermits::of(permit);
        let mut shared = self.overflow.lock(shared_permits.shard);
        let budget = &self.overflow.budget;
        if !has_list {
            let reply = self.extend(&mut shared, shared_permits.list, permit, now, |_, new| new, budget);
            if reply.granted {
                return overflow_reply(reply);
            }
        }
        let others = reply.in_use + count_open(&mut shared, shared_permits.list, now);
        if self.counted(&shared, shared_permits.counted, now).count() == 0 {
            return overflow_reply(exact_reply(false, others));
        }
        let (reply, end) = self.add_counted(&mut shared, shared_permits.counted, permit, at, others);
        if reply.granted && has_list {
            self.set_counted_until(&mut own, key, end);
        }
        overflow_reply(reply)
    }

    /// Releases a permit. A release without a permit does nothing; a counted permit expires.
    pub fn release_at(&self, permit: &PermitRequest<'_>, now: Nanos) {
        let key = permits_key(permit);
        let mut own = self.shards[key.shard()].lock();
        if own.find(key).is_some() {
            self.release_in(&mut own, key, permit, now, &self.budget);
        } else if self.overflow.in_use() {
            let shared_permits = SharedPermits::of(permit);
            let mut shared = self.overflow.lock(shared_permits.shard);
            self.release_in(&mut shared, shared_permits.list, permit, now, &self.overflow.budget);
        }
    }

    /// Releases all permits of a rule and subject. Returns how many were open. Shared ones stay: they belong to others,
    /// too.
    pub(super) fn release_all_at(&self, counter: u128, now: Nanos) -> u64 {
        let key = Key::of(counter ^ PERMITS_DOMAIN);
        let mut own = self.shards[key.shard()].lock();
        let open = count_open(&mut own, key, now);
        if let Some(place) = own.find(key) {
            own.remove(place, &self.budget);
        }
        u64::from(open)
    }

    /// Renews a permit of a list, or adds one if the open permits and `others` elsewhere are below the maximum.
    fn acquire_in(
        &self,
        shard: &mut Shard,
        key: Key,
        permit: &PermitRequest<'_>,
        at: TimePoint,
        others: u32,
        budget: &Budget,
    ) -> Result<PermitReply, NoMemory> {
        // A caller that restores remembered permits may know an older expiry.
        let later = |until: Nanos, new: Nanos| until.max(new);
        let renewed = self.extend(shard, key, permit, at.now, later, budget);
        let open = renewed.in_use.saturating_add(others);
        if renewed.granted || open >= permit.max_permits {
            return Ok(PermitReply { in_use: open, ..renewed });
        }
        let found = shard.find(key).map(|place| shard.entry(place));
        let is_new = found.is_none();
        let full = is_new && shard.ensure_room(key, at.secs, budget).is_err();
        if full && !budget.fits_permits(Block::BYTES) {
            return Err(NoMemory);
        }
        let new = || {
            let words = shard.out_of_line.permit_words(budget)?;
            Some(TableEntry { key, words, kind: EntryKind::Permits, expires: Secs::NEVER, tag: 0 })
        };
        let mut entry = found.or_else(new).ok_or(NoMemory)?;
        let until = at.now.plus(permit.ttl);
        if !shard.out_of_line.put_permit(&mut entry, permit.holder, until, budget) {
            if is_new {
                shard.out_of_line.release(&entry, budget);
            }
            return Err(NoMemory);
        }
        if is_new {
            shard.insert(&entry, at.secs, budget);
        }
        self.write_list(shard, entry, budget);
        Ok(exact_reply(true, open + 1))
    }

    /// Extends a permit that is held. `ends` picks the expiry from the current and the requested one.
    fn extend(
        &self,
        shard: &mut Shard,
        key: Key,
        permit: &PermitRequest<'_>,
        now: Nanos,
        ends: impl Fn(Nanos, Nanos) -> Nanos,
        budget: &Budget,
    ) -> PermitReply {
        let open = count_open(shard, key, now);
        let Some(place) = shard.find(key) else {
            return exact_reply(false, open);
        };
        let entry = shard.entry(place);
        let list = shard.out_of_line.permits(&entry);
        let own = list.and_then(|list| Some((list.end_of(permit.holder)?, list)));
        let Some((end, list)) = own else {
            return exact_reply(false, open);
        };
        list.put(permit.holder, ends(end, now.plus(permit.ttl)));
        self.write_list(shard, entry, budget);
        exact_reply(true, open)
    }

    fn release_in(&self, shard: &mut Shard, key: Key, permit: &PermitRequest<'_>, now: Nanos, budget: &Budget) {
        let open = count_open(shard, key, now);
        let Some(place) = shard.find(key) else {
            return;
        };
        let entry = shard.entry(place);
        let Some(list) = shard.out_of_line.permits(&entry) else {
            return;
        };
        list.remove(permit.holder);
        if (open == 0 || list.len() == 0) && list.counted_until <= now {
            shard.remove(place, budget);
        } else {
            self.write_list(shard, entry, budget);
        }
    }

    /// Writes the entry of a list with the bytes it takes and the expiry of its last permit.
    fn write_list(&self, shard: &mut Shard, mut entry: TableEntry, budget: &Budget) {
        let last = shard.out_of_line.count_permits(&mut entry, budget);
        entry.expires = Secs::expiry(self.began, last);
        if let Some(place) = shard.find(entry.key) {
            shard.set(place, &entry);
        }
    }

    fn millis(&self, at: Nanos) -> u64 {
        at.since(self.began).millis_up()
    }

    fn counted(&self, shard: &Shard, key: Key, now: Nanos) -> CountedPermits {
        let words = shard.find(key).map_or([0; 2], |place| shard.entry(place).words);
        CountedPermits::read(words, now.since(self.began).get() / 1_000_000)
    }

    /// Counts a permit, if the counted permits and `others` elsewhere are below the maximum. Returns the expiry of the
    /// counted permits, too. Their entry is written even beyond the cap: there are 16 for a rule.
    fn add_counted(
        &self,
        shard: &mut Shard,
        key: Key,
        permit: &PermitRequest<'_>,
        at: TimePoint,
        others: u32,
    ) -> (PermitReply, Nanos) {
        let mut counted = self.counted(shard, key, at.now);
        let open = counted.count().saturating_add(others);
        if open >= permit.max_permits {
            return (exact_reply(false, open), Nanos::ZERO);
        }
        counted.add(self.millis(at.now.plus(permit.ttl)));
        let end = self.began.plus(Nanos::from_millis(counted.end_ms()));
        let entry = TableEntry {
            key,
            words: counted.words(),
            kind: EntryKind::Permits,
            expires: Secs::expiry(self.began, end),
            tag: 0,
        };
        match shard.find(key) {
            Some(place) => shard.set(place, &entry),
            None => shard.insert(&entry, at.secs, &self.overflow.budget),
        }
        (exact_reply(true, open + 1), end)
    }

    /// Records that a subject with its own list has counted permits, too.
    fn set_counted_until(&self, own: &mut Shard, key: Key, end: Nanos) {
        let Some(place) = own.find(key) else {
            return;
        };
        let entry = own.entry(place);
        if let Some(list) = own.out_of_line.permits(&entry) {
            list.counted_until = list.counted_until.max(end);
        }
        self.write_list(own, entry, &self.budget);
    }
}

/// Until when a subject has counted permits in addition to those of its own list.
fn counted_until(shard: &Shard, key: Key) -> Nanos {
    let entry = shard.find(key).map(|place| shard.entry(place));
    let list = entry.and_then(|entry| shard.out_of_line.permits_of(&entry));
    list.map_or(Nanos::ZERO, |list| list.counted_until)
}

fn exact_reply(granted: bool, open: u32) -> PermitReply {
    PermitReply { granted, in_use: open, source: Source::Exact, degraded: None }
}

/// Marks the reply for permits that several subjects share.
fn overflow_reply(reply: PermitReply) -> PermitReply {
    PermitReply { source: Source::Overflow, ..reply }
}

/// Drops expired permits of a list. Returns how many are open.
fn count_open(shard: &mut Shard, key: Key, now: Nanos) -> u32 {
    let Some(place) = shard.find(key) else {
        return 0;
    };
    let entry = shard.entry(place);
    shard.out_of_line.permits(&entry).map_or(0, |list| list.open(now))
}

fn permits_key(permit: &PermitRequest<'_>) -> Key {
    Key::of(permit.counter() ^ PERMITS_DOMAIN)
}
