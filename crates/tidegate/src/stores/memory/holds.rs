//! Permits of what may be open at once. Each expires by itself if its holder dies.
//!
//! A subject that finds no room shares a list of permits with others, like a counter, and stays with it until
//! all of them are released: so it never has two lists at once. When not even a shared list can grow, permits
//! of a sixteenth of all subjects are only counted, in a [`Crowd`]. Whoever has permits in a crowd is limited
//! together with it. So the memory cap holds, and the limit of every subject does.
//!
//! Lock order: the shard of the subject, then the overflow shard.

use tidegate_core::store::{Held, Hold, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::accounts::Present;
use super::block::{Block, Entry, Kind, Secs};
use super::budget::Budget;
use super::key::Key;
use super::overflow::StandIn;
use super::shard::Shard;
use crate::crowd::Crowd;

/// Keeps permits apart from counters.
const SLOTS: u128 = 0x736c_6f74_7320_6f66_206f_7065_6e20_776b;

/// Where the permits of a subject without a list of its own are, in one overflow shard.
struct SharedPermits {
    shard: usize,
    /// A list that one subject in 4,096 shares.
    list: Key,
    /// A crowd that one subject in 16 shares.
    crowd: Key,
}

impl SharedPermits {
    fn of(hold: &Hold<'_>) -> Self {
        let StandIn { shard, subject } = StandIn::of(hold.subject);
        let key = |subject| Key::within_shard(hold.rule.counter(subject, 0) ^ SLOTS);
        SharedPermits {
            shard,
            list: key(subject),
            crowd: key(StandIn::last_resort(shard)),
        }
    }
}

/// There is no memory for one more permit.
struct NoMemory;

impl<C> MemoryStore<C> {
    /// Acquires or renews a permit. A denial takes nothing.
    pub fn hold_at(&self, hold: &Hold<'_>, now: Nanos) -> Held {
        let (at, key) = (self.present(now), own_key(hold));
        let mut own = self.shards[key.shard()].lock();
        let places = SharedPermits::of(hold);
        if own.find(key).is_some() {
            return self.hold_own(&mut own, key, &places, hold, at);
        }
        if !self.overflow.in_use()
            && let Ok(held) = self.hold_in(&mut own, key, hold, at, 0, &self.budget)
        {
            return held;
        }
        let mut shared = self.overflow.lock(places.shard);
        let crowd = self.crowd(&shared, places.crowd, now).count();
        if open(&mut shared, places.list, now) + crowd == 0
            && let Ok(held) = self.hold_in(&mut own, key, hold, at, 0, &self.budget)
        {
            return held;
        }
        let budget = &self.overflow.budget;
        let held = self.hold_in(&mut shared, places.list, hold, at, crowd, budget);
        let held = held.unwrap_or_else(|NoMemory| {
            let open = open(&mut shared, places.list, now);
            self.join_crowd(&mut shared, places.crowd, hold, at, open).0
        });
        self.overflow.used(places.shard);
        in_overflow(held)
    }

    /// The same for a subject with a list of its own. What does not fit joins a crowd, and until that has
    /// ended the subject is limited together with it.
    fn hold_own(
        &self,
        own: &mut Shard,
        key: Key,
        places: &SharedPermits,
        hold: &Hold<'_>,
        at: Present,
    ) -> Held {
        let crowded = crowded_until(own, key) > at.now;
        let crowd = if crowded {
            let shared = self.overflow.lock(places.shard);
            self.crowd(&shared, places.crowd, at.now).count()
        } else {
            0
        };
        match self.hold_in(own, key, hold, at, crowd, &self.budget) {
            Ok(held) if crowded => in_overflow(held),
            Ok(held) => held,
            Err(NoMemory) => {
                let open = open(own, key, at.now);
                let mut shared = self.overflow.lock(places.shard);
                let (held, end) = self.join_crowd(&mut shared, places.crowd, hold, at, open);
                self.overflow.used(places.shard);
                if held.granted {
                    self.crowd_until(own, key, end);
                }
                in_overflow(held)
            }
        }
    }

    /// Renews a permit, wherever it is. Acquires none, but one of a crowd: that has no name, so its renewal
    /// counts as another.
    pub fn renew_at(&self, hold: &Hold<'_>, now: Nanos) -> Held {
        let (at, key) = (self.present(now), own_key(hold));
        let mut own = self.shards[key.shard()].lock();
        let has_list = own.find(key).is_some();
        let held = self.prolong(&mut own, key, hold, now, |_, new| new, &self.budget);
        let may_be_shared = !has_list || crowded_until(&own, key) > now;
        if held.granted || !may_be_shared || !self.overflow.in_use() {
            return held;
        }
        let places = SharedPermits::of(hold);
        let mut shared = self.overflow.lock(places.shard);
        let budget = &self.overflow.budget;
        if !has_list {
            let held = self.prolong(&mut shared, places.list, hold, now, |_, new| new, budget);
            if held.granted {
                return in_overflow(held);
            }
        }
        let others = held.open + open(&mut shared, places.list, now);
        if self.crowd(&shared, places.crowd, now).count() == 0 {
            return in_overflow(exactly(false, others));
        }
        let (held, end) = self.join_crowd(&mut shared, places.crowd, hold, at, others);
        if held.granted && has_list {
            self.crowd_until(&mut own, key, end);
        }
        in_overflow(held)
    }

    /// Releases a permit. To release what is not held does nothing; a permit of a crowd ends by itself.
    pub fn release_at(&self, hold: &Hold<'_>, now: Nanos) {
        let key = own_key(hold);
        let mut own = self.shards[key.shard()].lock();
        if own.find(key).is_some() {
            self.release_in(&mut own, key, hold, now, &self.budget);
        } else if self.overflow.in_use() {
            let places = SharedPermits::of(hold);
            let mut shared = self.overflow.lock(places.shard);
            self.release_in(&mut shared, places.list, hold, now, &self.overflow.budget);
        }
    }

    /// Frees all permits of a rule and subject; how many were open. Shared ones stay: they are others', too.
    pub(super) fn vacate_at(&self, counter: u128, now: Nanos) -> u64 {
        let key = Key::of(counter ^ SLOTS);
        let mut own = self.shards[key.shard()].lock();
        let open = open(&mut own, key, now);
        if let Some(place) = own.find(key) {
            own.remove(place, &self.budget);
        }
        u64::from(open)
    }

    /// Renews a permit of a list, or adds one if fewer are open, with `others` elsewhere, than may be.
    fn hold_in(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        at: Present,
        others: u32,
        budget: &Budget,
    ) -> Result<Held, NoMemory> {
        // Whoever restores what is remembered may know an older end.
        let later = |until: Nanos, new: Nanos| until.max(new);
        let renewed = self.prolong(shard, key, hold, at.now, later, budget);
        let open = renewed.open.saturating_add(others);
        if renewed.granted || open >= hold.most {
            return Ok(Held { open, ..renewed });
        }
        let found = shard.find(key).map(|place| shard.entry(place));
        let is_new = found.is_none();
        let full = is_new && shard.has_room(key, at.secs, budget).is_err();
        if full && !budget.fits_permits(Block::BYTES) {
            return Err(NoMemory);
        }
        let new = || {
            let words = shard.annex.permit_words(budget)?;
            Some(Entry {
                key,
                words,
                kind: Kind::Slots,
                expires: Secs::NEVER,
                tag: 0,
            })
        };
        let mut entry = found.or_else(new).ok_or(NoMemory)?;
        let until = at.now.plus(hold.lasts);
        if !shard
            .annex
            .put_permit(&mut entry, hold.holder, until, budget)
        {
            if is_new {
                shard.annex.release(&entry, budget);
            }
            return Err(NoMemory);
        }
        if is_new {
            shard.insert(&entry, at.secs, budget);
        }
        self.write_list(shard, entry, budget);
        Ok(exactly(true, open + 1))
    }

    /// Lets a permit that is held end when `ends` says, of when it would end and of when it is asked to.
    fn prolong(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        now: Nanos,
        ends: impl Fn(Nanos, Nanos) -> Nanos,
        budget: &Budget,
    ) -> Held {
        let open = open(shard, key, now);
        let Some(place) = shard.find(key) else {
            return exactly(false, open);
        };
        let entry = shard.entry(place);
        let list = shard.annex.permits(&entry);
        let own = list.and_then(|list| Some((list.end_of(hold.holder)?, list)));
        let Some((end, list)) = own else {
            return exactly(false, open);
        };
        list.put(hold.holder, ends(end, now.plus(hold.lasts)));
        self.write_list(shard, entry, budget);
        exactly(true, open)
    }

    fn release_in(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        now: Nanos,
        budget: &Budget,
    ) {
        let open = open(shard, key, now);
        let Some(place) = shard.find(key) else {
            return;
        };
        let entry = shard.entry(place);
        let Some(list) = shard.annex.permits(&entry) else {
            return;
        };
        list.remove(hold.holder);
        if (open == 0 || list.len() == 0) && list.crowded_until <= now {
            shard.remove(place, budget);
        } else {
            self.write_list(shard, entry, budget);
        }
    }

    /// Writes the entry of a list with the bytes it takes and the expiry of its last permit.
    fn write_list(&self, shard: &mut Shard, mut entry: Entry, budget: &Budget) {
        let last = shard.annex.count_permits(&mut entry, budget);
        entry.expires = Secs::expiry(self.began, last);
        if let Some(place) = shard.find(entry.key) {
            shard.set(place, &entry);
        }
    }

    fn millis(&self, at: Nanos) -> u64 {
        at.since(self.began).millis_up()
    }

    fn crowd(&self, shard: &Shard, key: Key, now: Nanos) -> Crowd {
        let words = shard
            .find(key)
            .map_or([0; 2], |place| shard.entry(place).words);
        Crowd::read(words, now.since(self.began).get() / 1_000_000)
    }

    /// Counts a permit in a crowd, if with `others` elsewhere there are fewer than may be; and when the crowd
    /// ends. Its entry is written beyond the cap: there are 16 for a rule.
    fn join_crowd(
        &self,
        shard: &mut Shard,
        key: Key,
        hold: &Hold<'_>,
        at: Present,
        others: u32,
    ) -> (Held, Nanos) {
        let mut crowd = self.crowd(shard, key, at.now);
        let open = crowd.count().saturating_add(others);
        if open >= hold.most {
            return (exactly(false, open), Nanos::ZERO);
        }
        crowd.add(self.millis(at.now.plus(hold.lasts)));
        let end = self.began.plus(Nanos::from_millis(crowd.end_ms()));
        let entry = Entry {
            key,
            words: crowd.words(),
            kind: Kind::Slots,
            expires: Secs::expiry(self.began, end),
            tag: 0,
        };
        match shard.find(key) {
            Some(place) => shard.set(place, &entry),
            None => shard.insert(&entry, at.secs, &self.overflow.budget),
        }
        (exactly(true, open + 1), end)
    }

    /// Notes that a subject with a list of its own has permits in a crowd, too.
    fn crowd_until(&self, own: &mut Shard, key: Key, end: Nanos) {
        let Some(place) = own.find(key) else {
            return;
        };
        let entry = own.entry(place);
        if let Some(list) = own.annex.permits(&entry) {
            list.crowded_until = list.crowded_until.max(end);
        }
        self.write_list(own, entry, &self.budget);
    }
}

/// Until when a subject has permits in a crowd beside those of its own list.
fn crowded_until(shard: &Shard, key: Key) -> Nanos {
    let entry = shard.find(key).map(|place| shard.entry(place));
    let list = entry.and_then(|entry| shard.annex.permits_of(&entry));
    list.map_or(Nanos::ZERO, |list| list.crowded_until)
}

fn exactly(granted: bool, open: u32) -> Held {
    Held {
        granted,
        open,
        source: Source::Exact,
    }
}

/// Of permits that several subjects share.
fn in_overflow(held: Held) -> Held {
    Held {
        source: Source::Overflow,
        ..held
    }
}

/// Drops the permits of a list that have expired; how many are open.
fn open(shard: &mut Shard, key: Key, now: Nanos) -> u32 {
    let Some(place) = shard.find(key) else {
        return 0;
    };
    let entry = shard.entry(place);
    shard.annex.permits(&entry).map_or(0, |list| list.open(now))
}

fn own_key(hold: &Hold<'_>) -> Key {
    Key::of(hold.counter() ^ SLOTS)
}
