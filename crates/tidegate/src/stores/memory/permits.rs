//! Permits of concurrency limits. Each expires if its holder dies.
//!
//! A subject without room for a list shares a list of permits with others, like a counter, and stays with it until all
//! of them are released: so it never has two lists at once. When not even a shared list can grow, the permits of a
//! sixteenth of all subjects are only counted, in a [`CountedPermits`]. A subject with counted permits is limited
//! together with the others counted there. So the memory cap holds, and so does the limit of every subject.
//!
//! Lock order: the shard of the subject, then the overflow shard.

use parking_lot::MutexGuard;
use tidegate_core::store::{PermitReply, PermitRequest, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::block::{Block, EntryKind, Secs, TableEntry};
use super::budget::Budget;
use super::counter_io::TimePoint;
use super::key::Key;
use super::overflow::SharedKeys;
use super::permit_list::PermitList;
use super::shard::Shard;
use crate::counted_permits::CountedPermits;

/// Separates the keys of permits from those of counters.
const PERMITS_DOMAIN: u128 = 0x736c_6f74_7320_6f66_206f_7065_6e20_776b;

/// A locked shard with permits, at one moment.
struct PermitShard<'s> {
    shard: MutexGuard<'s, Shard>,
    budget: &'s Budget,
    /// The origin of expiries.
    began: Nanos,
    at: TimePoint,
}

/// There is no memory for one more permit.
struct NoMemory;

impl<C> MemoryStore<C> {
    fn lock_own(&self, key: Key, now: Nanos) -> PermitShard<'_> {
        let shard = self.shards[key.shard()].lock();
        PermitShard { shard, budget: &self.budget, began: self.began, at: self.time_point(now) }
    }

    /// Locks the shard of permits that several subjects share: a list under `group`, and counted permits under
    /// `last_resort`.
    fn lock_overflow(&self, keys: SharedKeys, now: Nanos) -> PermitShard<'_> {
        let shard = self.overflow.lock(keys.shard);
        PermitShard { shard, budget: &self.overflow.budget, began: self.began, at: self.time_point(now) }
    }

    /// Acquires or renews a permit. A denial acquires nothing.
    pub fn acquire_at(&self, permit: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let (key, keys) = (permits_key(permit), shared_keys(permit));
        let mut own = self.lock_own(key, now);
        if own.has(key) {
            return self.acquire_own(&mut own, key, keys, permit);
        }
        if !self.overflow.in_use() {
            if let Ok(reply) = own.acquire(key, permit, 0) {
                return reply;
            }
        }
        let mut shared = self.lock_overflow(keys, now);
        let counted = shared.counted(keys.last_resort).count();
        if shared.count_open(keys.group) + counted == 0 {
            if let Ok(reply) = own.acquire(key, permit, 0) {
                return reply;
            }
        }
        let reply = shared.acquire(keys.group, permit, counted).unwrap_or_else(|NoMemory| {
            let open = shared.count_open(keys.group);
            shared.add_counted(keys.last_resort, permit, open).0
        });
        self.overflow.mark_used(keys.shard);
        overflow_reply(reply)
    }

    /// The same for a subject with its own list. A permit that does not fit is counted, and until the counted permits
    /// have expired the subject is limited together with the others counted there.
    fn acquire_own(
        &self,
        own: &mut PermitShard<'_>,
        key: Key,
        keys: SharedKeys,
        permit: &PermitRequest<'_>,
    ) -> PermitReply {
        let now = own.at.now;
        let has_counted = own.counted_until(key) > now;
        let counted = if has_counted { self.lock_overflow(keys, now).counted(keys.last_resort).count() } else { 0 };
        match own.acquire(key, permit, counted) {
            Ok(reply) if has_counted => overflow_reply(reply),
            Ok(reply) => reply,
            Err(NoMemory) => {
                let open = own.count_open(key);
                let mut shared = self.lock_overflow(keys, now);
                let (reply, end) = shared.add_counted(keys.last_resort, permit, open);
                self.overflow.mark_used(keys.shard);
                if reply.granted {
                    own.set_counted_until(key, end);
                }
                overflow_reply(reply)
            }
        }
    }

    /// Renews a permit, wherever it is. Acquires none, except that a counted permit has no holder, so its renewal
    /// counts as another permit.
    pub fn renew_at(&self, permit: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let key = permits_key(permit);
        let mut own = self.lock_own(key, now);
        let has_list = own.has(key);
        let reply = own.extend(key, permit, |_, new| new);
        let may_be_shared = !has_list || own.counted_until(key) > now;
        if reply.granted || !may_be_shared || !self.overflow.in_use() {
            return reply;
        }
        let keys = shared_keys(permit);
        let mut shared = self.lock_overflow(keys, now);
        if !has_list {
            let reply = shared.extend(keys.group, permit, |_, new| new);
            if reply.granted {
                return overflow_reply(reply);
            }
        }
        let others = reply.in_use + shared.count_open(keys.group);
        if shared.counted(keys.last_resort).count() == 0 {
            return overflow_reply(exact_reply(false, others));
        }
        let (reply, end) = shared.add_counted(keys.last_resort, permit, others);
        if reply.granted && has_list {
            own.set_counted_until(key, end);
        }
        overflow_reply(reply)
    }

    /// Releases a permit. A release without a permit does nothing; a counted permit expires.
    pub fn release_at(&self, permit: &PermitRequest<'_>, now: Nanos) {
        let key = permits_key(permit);
        let mut own = self.lock_own(key, now);
        if own.has(key) {
            own.release(key, permit.holder);
        } else if self.overflow.in_use() {
            let keys = shared_keys(permit);
            self.lock_overflow(keys, now).release(keys.group, permit.holder);
        }
    }

    /// Releases all permits of a rule and subject. Returns how many were open. Shared ones stay: they belong to others,
    /// too.
    pub(super) fn release_all_at(&self, counter: u128, now: Nanos) -> u64 {
        let key = Key::of(counter ^ PERMITS_DOMAIN);
        let mut own = self.lock_own(key, now);
        let open = own.count_open(key);
        own.remove(key);
        u64::from(open)
    }
}

impl PermitShard<'_> {
    fn has(&self, key: Key) -> bool {
        self.shard.find(key).is_some()
    }

    /// A list of permits, and its entry.
    fn list(&mut self, key: Key) -> Option<(TableEntry, &mut PermitList)> {
        let entry = self.shard.get(key)?;
        let list = self.shard.out_of_line.permits(&entry)?;
        Some((entry, list))
    }

    /// Drops expired permits of a list. Returns how many are open.
    fn count_open(&mut self, key: Key) -> u32 {
        let now = self.at.now;
        self.list(key).map_or(0, |(_, list)| list.open(now))
    }

    /// Until when a subject has counted permits in addition to those of its own list.
    fn counted_until(&mut self, key: Key) -> Nanos {
        self.list(key).map_or(Nanos::ZERO, |(_, list)| list.counted_until)
    }

    /// Records that a subject with its own list has counted permits, too.
    fn set_counted_until(&mut self, key: Key, end: Nanos) {
        if let Some((entry, list)) = self.list(key) {
            list.counted_until = list.counted_until.max(end);
            self.write(entry);
        }
    }

    /// Renews a permit of a list, or adds one if the open permits and `others` elsewhere are below the maximum.
    fn acquire(&mut self, key: Key, permit: &PermitRequest<'_>, others: u32) -> Result<PermitReply, NoMemory> {
        // A caller that restores remembered permits may know an older expiry.
        let renewed = self.extend(key, permit, Nanos::max);
        let open = renewed.in_use.saturating_add(others);
        if renewed.granted || open >= permit.max_permits {
            return Ok(PermitReply { in_use: open, ..renewed });
        }
        let found = self.shard.get(key);
        let is_new = found.is_none();
        let mut entry = found.or_else(|| self.new_list(key)).ok_or(NoMemory)?;
        let (until, budget) = (self.at.now.plus(permit.ttl), self.budget);
        if !self.shard.out_of_line.put_permit(&mut entry, permit.holder, until, budget) {
            if is_new {
                self.shard.out_of_line.release(&entry, budget);
            }
            return Err(NoMemory);
        }
        if is_new {
            self.shard.insert(&entry, self.at.secs, budget);
        }
        self.write(entry);
        Ok(exact_reply(true, open + 1))
    }

    /// An empty list, if there is memory for it and its entry.
    fn new_list(&mut self, key: Key) -> Option<TableEntry> {
        let has_room = self.shard.ensure_room(key, self.at.secs, self.budget).is_ok();
        if !has_room && !self.budget.fits_permits(Block::BYTES) {
            return None;
        }
        let words = self.shard.out_of_line.permit_words(self.budget)?;
        Some(TableEntry { key, words, kind: EntryKind::Permits, expires: Secs::NEVER, tag: 0 })
    }

    /// Extends a permit that is held. `end_of` picks the expiry from the current and the requested one.
    fn extend(&mut self, key: Key, permit: &PermitRequest<'_>, end_of: fn(Nanos, Nanos) -> Nanos) -> PermitReply {
        let (open, requested) = (self.count_open(key), self.at.now.plus(permit.ttl));
        let held = self.list(key).and_then(|(entry, list)| Some((entry, list.end_of(permit.holder)?, list)));
        let Some((entry, end, list)) = held else {
            return exact_reply(false, open);
        };
        list.put(permit.holder, end_of(end, requested));
        self.write(entry);
        exact_reply(true, open)
    }

    fn release(&mut self, key: Key, holder: u128) {
        let (_drops_expired, now) = (self.count_open(key), self.at.now);
        let Some((entry, list)) = self.list(key) else {
            return;
        };
        list.remove(holder);
        if list.len() == 0 && list.counted_until <= now {
            self.remove(key);
        } else {
            self.write(entry);
        }
    }

    /// Writes the entry of a list with the bytes it takes and the expiry of its last permit.
    fn write(&mut self, mut entry: TableEntry) {
        let last = self.shard.out_of_line.count_permits(&mut entry, self.budget);
        entry.expires = Secs::expiry(self.began, last);
        if let Some(place) = self.shard.find(entry.key) {
            self.shard.set(place, &entry);
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(place) = self.shard.find(key) {
            self.shard.remove(place, self.budget);
        }
    }

    fn counted(&self, key: Key) -> CountedPermits {
        let words = self.shard.get(key).map_or([0; 2], |entry| entry.words);
        CountedPermits::read(words, self.at.now.since(self.began).get() / 1_000_000)
    }

    /// Counts a permit, if the counted permits and `others` elsewhere are below the maximum. Returns the expiry of the
    /// counted permits, too. Their entry is written even beyond the cap: there are 16 for a rule.
    fn add_counted(&mut self, key: Key, permit: &PermitRequest<'_>, others: u32) -> (PermitReply, Nanos) {
        let mut counted = self.counted(key);
        let open = counted.count().saturating_add(others);
        if open >= permit.max_permits {
            return (exact_reply(false, open), Nanos::ZERO);
        }
        counted.add(self.at.now.plus(permit.ttl).since(self.began).millis_up());
        let end = self.began.plus(Nanos::from_millis(counted.end_ms()));
        let (words, expires) = (counted.words(), Secs::expiry(self.began, end));
        let entry = TableEntry { key, words, kind: EntryKind::Permits, expires, tag: 0 };
        self.shard.put(&entry, self.at.secs, self.budget);
        (exact_reply(true, open + 1), end)
    }
}

fn exact_reply(granted: bool, open: u32) -> PermitReply {
    PermitReply { granted, in_use: open, source: Source::Exact, degraded: None }
}

/// Marks the reply for permits that several subjects share.
fn overflow_reply(reply: PermitReply) -> PermitReply {
    PermitReply { source: Source::Overflow, ..reply }
}

fn permits_key(permit: &PermitRequest<'_>) -> Key {
    Key::of(permit.counter() ^ PERMITS_DOMAIN)
}

fn shared_keys(permit: &PermitRequest<'_>) -> SharedKeys {
    SharedKeys::of(permit.subject, |subject| permit.rule.counter(subject, 0) ^ PERMITS_DOMAIN)
}
