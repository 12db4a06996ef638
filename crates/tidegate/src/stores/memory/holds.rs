//! Slots of what may be open at once. Each expires by itself if its holder dies.
//!
//! A subject that finds no room shares its slots with others, like a counter, and stays with the
//! shared ones until they are all given back: so it never has two lists at once.

use tidegate_core::store::{Held, Hold, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::accounts::Present;
use super::annex::Slot;
use super::block::{Entry, Kind, Secs};
use super::budget::Budget;
use super::key::Key;
use super::overflow::StandIn;
use super::shard::Shard;

/// Keeps slots apart from counters.
const SLOTS: u128 = 0x736c_6f74_7320_6f66_206f_7065_6e20_776b;

impl<C> MemoryStore<C> {
    /// Takes or renews a slot. A refusal takes nothing.
    pub fn hold_at(&self, hold: &Hold<'_>, now: Nanos) -> Held {
        let (at, key) = (self.present(now), own_key(hold));
        let mut own = self.shards[key.shard()].lock();
        if own.find(key).is_some() {
            return self.hold_in(&mut own, key, hold, at, &self.budget);
        }
        let room = own.has_room(key, at.secs, &self.budget).is_ok();
        if room && !self.overflow.in_use() {
            return self.hold_in(&mut own, key, hold, at, &self.budget);
        }
        let (shard, shared_key) = shared_place(hold);
        let mut shared = self.overflow.lock(shard);
        if room && open(&mut shared, shared_key, now) == 0 {
            return self.hold_in(&mut own, key, hold, at, &self.budget);
        }
        let held = self.hold_in(&mut shared, shared_key, hold, at, &self.overflow.budget);
        self.overflow.used();
        in_overflow(held)
    }

    /// Lets a slot last on, wherever it is. Takes none.
    pub fn renew_at(&self, hold: &Hold<'_>, now: Nanos) -> Held {
        let key = own_key(hold);
        let mut own = self.shards[key.shard()].lock();
        if own.find(key).is_some() || !self.overflow.in_use() {
            return self.renew_in(&mut own, key, hold, now);
        }
        let (shard, key) = shared_place(hold);
        in_overflow(self.renew_in(&mut self.overflow.lock(shard), key, hold, now))
    }

    /// Gives a slot back. Giving back what is not held does nothing.
    pub fn release_at(&self, hold: &Hold<'_>, now: Nanos) {
        let key = own_key(hold);
        let mut own = self.shards[key.shard()].lock();
        if own.find(key).is_some() {
            release_in(&mut own, key, hold, now, &self.budget);
        } else if self.overflow.in_use() {
            let (shard, key) = shared_place(hold);
            let mut shared = self.overflow.lock(shard);
            release_in(&mut shared, key, hold, now, &self.overflow.budget);
        }
    }

    /// Frees all slots of a rule and subject; how many were open. Shared ones stay: they are others', too.
    pub(super) fn vacate_at(&self, counter: u128, now: Nanos) -> u64 {
        let key = Key::of(counter ^ SLOTS);
        let mut own = self.shards[key.shard()].lock();
        let open = open(&mut own, key, now);
        if let Some(place) = own.find(key) {
            own.remove(place, &self.budget);
        }
        u64::from(open)
    }

    fn hold_in(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        at: Present,
        budget: &Budget,
    ) -> Held {
        // Who puts back what is remembered may know an older end.
        let later = |until: Nanos, new: Nanos| until.max(new);
        let renewed = self.last_on(shard, key, hold, at.now, later);
        if renewed.granted || renewed.open >= hold.most {
            return renewed;
        }
        let found = shard.find(key).map(|place| shard.entry(place));
        let mut entry = found.unwrap_or_else(|| {
            let entry = Entry {
                key,
                words: shard.annex.no_slots(budget),
                kind: Kind::Slots,
                expires: Secs::NEVER,
                tag: 0,
            };
            shard.insert(&entry, at.secs, budget);
            entry
        });
        let slot = Slot {
            holder: hold.holder,
            until: at.now.plus(hold.lasts),
        };
        shard.annex.add_slot(&mut entry, slot, budget);
        self.expire(shard, entry);
        exactly(true, renewed.open + 1)
    }

    fn renew_in(&self, shard: &mut Shard, key: Key, hold: &Hold<'_>, now: Nanos) -> Held {
        self.last_on(shard, key, hold, now, |_, new| new)
    }

    /// Lets a slot that is held end when `ends` says, of when it would end and of when it is asked to.
    fn last_on(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        now: Nanos,
        ends: impl Fn(Nanos, Nanos) -> Nanos,
    ) -> Held {
        let open = open(shard, key, now);
        let Some(place) = shard.find(key) else {
            return exactly(false, open);
        };
        let entry = shard.entry(place);
        let slots = shard.annex.slots(&entry);
        let own = slots.and_then(|slots| slots.iter_mut().find(|s| s.holder == hold.holder));
        let Some(own) = own else {
            return exactly(false, open);
        };
        own.until = ends(own.until, now.plus(hold.lasts));
        self.expire(shard, entry);
        exactly(true, open)
    }

    /// Writes an entry of slots with the expiry of its last one.
    fn expire(&self, shard: &mut Shard, mut entry: Entry) {
        let slots = shard.annex.slots(&entry);
        let last = slots.and_then(|slots| slots.iter().map(|slot| slot.until).max());
        entry.expires = Secs::expiry(self.began, last.unwrap_or(Nanos::ZERO));
        if let Some(place) = shard.find(entry.key) {
            shard.set(place, &entry);
        }
    }
}

fn exactly(granted: bool, open: u32) -> Held {
    Held {
        granted,
        open,
        source: Source::Exact,
    }
}

/// Of a list that several subjects share.
fn in_overflow(held: Held) -> Held {
    Held {
        source: Source::Overflow,
        ..held
    }
}

/// Drops the slots that have expired; how many are open.
fn open(shard: &mut Shard, key: Key, now: Nanos) -> u32 {
    let Some(place) = shard.find(key) else {
        return 0;
    };
    let entry = shard.entry(place);
    let slots = shard.annex.slots(&entry);
    slots.map_or(0, |slots| {
        slots.retain(|slot| slot.until > now);
        u32::try_from(slots.len()).unwrap_or(u32::MAX)
    })
}

fn release_in(shard: &mut Shard, key: Key, hold: &Hold<'_>, now: Nanos, budget: &Budget) {
    let Some(place) = shard.find(key) else {
        return;
    };
    let entry = shard.entry(place);
    if let Some(slots) = shard.annex.slots(&entry) {
        slots.retain(|slot| slot.until > now && slot.holder != hold.holder);
        if slots.is_empty() {
            shard.remove(place, budget);
        }
    }
}

fn own_key(hold: &Hold<'_>) -> Key {
    Key::of(hold.counter() ^ SLOTS)
}

fn shared_place(hold: &Hold<'_>) -> (usize, Key) {
    let stand_in = StandIn::of(hold.subject);
    let key = Key::within_shard(hold.rule.counter(stand_in.subject, 0) ^ SLOTS);
    (stand_in.shard, key)
}
