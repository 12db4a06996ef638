//! The slots of concurrency limits that this node has given out, so that they outlive the store.
//!
//! Kept true: a slot lasts here no longer than in the store, because its end is reckoned from before
//! the store was asked; one that was given back is not open, though the store may have to hear of it
//! yet. Bounded: beyond that a slot is known to the store alone. A call finds its permit by holder and walks
//! no others, however many are open. Knows no store; time is injected.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tidegate_core::store::{Held, Hold, Source, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::Sweep;
use tidegate_core::units::Nanos;

use crate::permit_set::PermitSet;

/// What this node knows of slots.
pub(super) struct OpenSlots {
    table: Mutex<Table>,
    most: usize,
}

#[derive(Default)]
struct Table {
    of: BTreeMap<u128, Owners>,
    slots: usize,
    /// Counter and holder of those of which the store has to hear.
    unsynced: BTreeSet<(u128, u128)>,
    /// When those that have ended are looked for everywhere.
    sweep: Sweep,
}

/// The slots of one subject under one rule.
struct Owners {
    subject: Fingerprint,
    rule: RuleName,
    terms: Terms,
    permits: PermitSet<Known>,
    /// How many of them are leaving.
    leaving: usize,
}

impl Owners {
    /// Permits that are open.
    fn open(&self) -> u32 {
        u32::try_from(self.permits.len() - self.leaving).unwrap_or(u32::MAX)
    }
}

/// What is known of the permit of one holder.
#[derive(Clone, Copy, Debug)]
struct OwnPermit {
    until: Nanos,
    known: Known,
}

/// What the store knows of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// That it is open, for as long as this node says.
    There,
    /// Nothing, or less than this node: it was given or renewed without it.
    OnlyHere,
    /// Perhaps that it is open, but it was given back.
    Leaving,
}

/// A slot that the store is to be told of.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) subject: Fingerprint,
    rule: RuleName,
    terms: Terms,
    holder: u128,
    left: Nanos,
    /// Whether it was given back.
    pub(super) leaving: bool,
}

impl News {
    /// The slot, whatever else is open: it is being used.
    pub(super) fn hold(&self) -> Hold<'_> {
        Hold {
            subject: self.subject,
            rule: &self.rule,
            holder: self.holder,
            most: u32::MAX,
            lasts: self.left,
            terms: &self.terms,
        }
    }
}

impl OpenSlots {
    pub(super) fn new(most: usize) -> Self {
        OpenSlots {
            table: Mutex::default(),
            most,
        }
    }

    /// The store has given or renewed a slot, asked at `sent`.
    pub(super) fn given(&self, hold: &Hold<'_>, sent: Nanos) {
        let mut table = self.table.lock();
        table.put(hold, sent, sent.plus(hold.lasts), Known::There, self.most);
    }

    /// Gives or renews a slot without the store, if fewer than `share` are open here.
    pub(super) fn take(&self, hold: &Hold<'_>, share: u32, now: Nanos) -> Held {
        let mut table = self.table.lock();
        let (open, own) = table.look(hold, now);
        let has = own.is_some_and(|own| own.known != Known::Leaving);
        let until = now.plus(hold.lasts);
        let granted =
            (has || open < share) && table.put(hold, now, until, Known::OnlyHere, self.most);
        held(granted, open + u32::from(granted && !has))
    }

    /// Renews a slot without the store; nothing if this node does not know it.
    pub(super) fn renew(&self, hold: &Hold<'_>, now: Nanos) -> Option<Held> {
        let mut table = self.table.lock();
        let (open, own) = table.look(hold, now);
        let granted = match own?.known {
            Known::There | Known::OnlyHere => {
                table.put(hold, now, now.plus(hold.lasts), Known::OnlyHere, self.most)
            }
            Known::Leaving => false,
        };
        Some(held(granted, open))
    }

    /// A slot is given back, and the store has to hear of it: also of one that it may have given
    /// without this node having heard so.
    pub(super) fn leaves(&self, hold: &Hold<'_>, now: Nanos) {
        let mut table = self.table.lock();
        let (_, own) = table.look(hold, now);
        let until = own.map_or(now.plus(hold.lasts), |own| own.until);
        table.put(hold, now, until, Known::Leaving, self.most);
    }

    /// The store knows that a slot is not open.
    pub(super) fn left(&self, hold: &Hold<'_>) {
        self.table.lock().remove(hold);
    }

    /// The slots of a counter were freed, whoever held them.
    pub(super) fn forget(&self, counter: u128) {
        let mut table = self.table.lock();
        if let Some(owners) = table.of.remove(&counter) {
            table.slots -= owners.permits.len();
            for (holder, _, _) in owners.permits.iter() {
                table.unsynced.remove(&(counter, holder));
            }
        }
    }

    /// Whether the store may not know of a slot that is open.
    pub(super) fn is_only_here(&self, hold: &Hold<'_>, now: Nanos) -> bool {
        let (_, own) = self.table.lock().look(hold, now);
        own.is_some_and(|own| own.known == Known::OnlyHere)
    }

    /// Whether a slot is open as far as this node knows.
    pub(super) fn is_open(&self, hold: &Hold<'_>, now: Nanos) -> bool {
        let (_, own) = self.table.lock().look(hold, now);
        own.is_some_and(|own| own.known != Known::Leaving)
    }

    /// Every slot that is open here, of subjects that `holds` names: for a store that has lost them.
    pub(super) fn all(&self, holds: impl Fn(Fingerprint) -> bool, now: Nanos) -> Vec<News> {
        let table = self.table.lock();
        let owners = table.of.values().filter(|owners| holds(owners.subject));
        let news = owners.flat_map(|owners| {
            let holders = owners.permits.iter().map(|(holder, ..)| holder);
            holders.filter_map(|holder| owners.news(holder, now))
        });
        news.filter(|news| !news.leaving).collect()
    }

    /// Every slot of which the store has to hear. Walks no others.
    pub(super) fn due(&self, holds: impl Fn(Fingerprint) -> bool, now: Nanos) -> Vec<News> {
        let table = self.table.lock();
        let news = table.unsynced.iter().filter_map(|(counter, holder)| {
            let owners = table.of.get(counter).filter(|own| holds(own.subject))?;
            owners.news(*holder, now)
        });
        news.collect()
    }
}

impl Owners {
    fn news(&self, holder: u128, now: Nanos) -> Option<News> {
        let (until, known) = self.permits.get(holder).filter(|(until, _)| *until > now)?;
        Some(News {
            subject: self.subject,
            rule: self.rule.clone(),
            terms: self.terms,
            holder,
            left: until.since(now),
            leaving: *known == Known::Leaving,
        })
    }
}

impl Table {
    /// How many are open, and the holder's own.
    fn look(&mut self, hold: &Hold<'_>, now: Nanos) -> (u32, Option<OwnPermit>) {
        let counter = hold.counter();
        self.expire(counter, now);
        let Some(owners) = self.of.get(&counter) else {
            return (0, None);
        };
        let own = owners.permits.get(hold.holder);
        let own = own.map(|(until, known)| OwnPermit {
            until,
            known: *known,
        });
        (owners.open(), own)
    }

    /// Drops the permits of a counter that have ended.
    fn expire(&mut self, counter: u128, now: Nanos) {
        while let Some(owners) = self.of.get_mut(&counter)
            && let Some((holder, known)) = owners.permits.pop_ended(now)
        {
            self.dropped(counter, holder, known);
        }
    }

    /// Writes a slot down; whether there is room for it.
    fn put(
        &mut self,
        hold: &Hold<'_>,
        now: Nanos,
        until: Nanos,
        known: Known,
        most: usize,
    ) -> bool {
        let (counter, holder) = (hold.counter(), hold.holder);
        let has = self
            .of
            .get(&counter)
            .is_some_and(|own| own.permits.get(holder).is_some());
        if !has && self.sweep.due(self.slots, most, now) {
            self.drop_ended(now);
        }
        if !has && self.slots >= most {
            return false;
        }
        let owners = self.of.entry(counter).or_insert_with(|| Owners {
            subject: hold.subject,
            rule: hold.rule.clone(),
            terms: *hold.terms,
            permits: PermitSet::default(),
            leaving: 0,
        });
        match owners.permits.put(holder, until, known) {
            Some(before) => owners.leaving -= usize::from(before == Known::Leaving),
            None => self.slots += 1,
        }
        owners.leaving += usize::from(known == Known::Leaving);
        if known == Known::There {
            self.unsynced.remove(&(counter, holder));
        } else {
            self.unsynced.insert((counter, holder));
        }
        self.sweep.note(until);
        true
    }

    fn remove(&mut self, hold: &Hold<'_>) {
        let (counter, holder) = (hold.counter(), hold.holder);
        let owners = self.of.get_mut(&counter);
        if let Some(known) = owners.and_then(|own| own.permits.remove(holder)) {
            self.dropped(counter, holder, known);
        }
    }

    /// A permit is no longer among those of its counter.
    fn dropped(&mut self, counter: u128, holder: u128, known: Known) {
        self.slots -= 1;
        self.unsynced.remove(&(counter, holder));
        if let Some(owners) = self.of.get_mut(&counter) {
            owners.leaving -= usize::from(known == Known::Leaving);
            if owners.permits.is_empty() {
                self.of.remove(&counter);
            }
        }
    }

    fn drop_ended(&mut self, now: Nanos) {
        let counters: Vec<u128> = self.of.keys().copied().collect();
        for counter in counters {
            self.expire(counter, now);
        }
        let left = self.of.values().flat_map(|owners| owners.permits.iter());
        self.sweep.done(left.map(|(_, until, _)| until), now);
    }
}

fn held(granted: bool, open: u32) -> Held {
    Held {
        granted,
        open,
        source: Source::Fallback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    fn hold(rule: &RuleName, holder: u128) -> Hold<'_> {
        Hold {
            subject: Fingerprint::new(1),
            rule,
            holder,
            most: 10,
            lasts: AT(10),
            terms: &Terms::USUAL,
        }
    }

    /// What the store is to be told: who, and whether it left.
    fn due(slots: &OpenSlots, now: Nanos) -> Vec<(u128, bool)> {
        let due = slots.due(|_| true, now).into_iter();
        due.map(|news| (news.holder, news.leaving)).collect()
    }

    #[test]
    fn what_the_store_gave_counts_toward_the_share() {
        let (slots, rule) = (OpenSlots::new(100), RuleName::new("r"));
        slots.given(&hold(&rule, 1), AT(0));
        assert!(slots.take(&hold(&rule, 2), 2, AT(1)).granted);
        let third = slots.take(&hold(&rule, 3), 2, AT(1));
        assert_eq!((third.granted, third.open), (false, 2));
        assert!(slots.take(&hold(&rule, 2), 2, AT(1)).granted, "has one");
        // The one of the store ends first: it was reckoned from when the store was asked.
        assert!(slots.take(&hold(&rule, 3), 2, AT(10)).granted);
    }

    #[test]
    fn the_store_hears_of_what_changed_without_it_and_of_nothing_else() {
        let (slots, rule) = (OpenSlots::new(100), RuleName::new("r"));
        slots.given(&hold(&rule, 1), AT(0));
        slots.given(&hold(&rule, 2), AT(0));
        assert_eq!(due(&slots, AT(1)), []);
        slots.take(&hold(&rule, 3), 9, AT(1));
        slots.renew(&hold(&rule, 1), AT(1));
        slots.leaves(&hold(&rule, 2), AT(1));
        assert_eq!(due(&slots, AT(2)), [(1, false), (2, true), (3, false)]);
        slots.left(&hold(&rule, 2));
        slots.given(&hold(&rule, 1), AT(2));
        slots.given(&hold(&rule, 3), AT(2));
        assert_eq!(due(&slots, AT(2)), []);
        assert_eq!(slots.all(|_| true, AT(2)).len(), 2);
    }

    #[test]
    fn no_renewal_brings_a_slot_back_that_was_given_back_or_has_ended() {
        let (slots, rule) = (OpenSlots::new(100), RuleName::new("r"));
        slots.given(&hold(&rule, 1), AT(0));
        slots.leaves(&hold(&rule, 1), AT(1));
        let late = slots.renew(&hold(&rule, 1), AT(2));
        assert!(late.is_some_and(|held| !held.granted && held.open == 0));
        slots.given(&hold(&rule, 2), AT(0));
        assert_eq!(slots.renew(&hold(&rule, 2), AT(10)), None);
    }

    /// Every call went through all of a full table, under the lock of all.
    #[test]
    fn a_full_table_is_gone_through_only_when_something_has_ended() {
        let (slots, rule) = (OpenSlots::new(100), RuleName::new("r"));
        let due = |now| slots.table.lock().sweep.due(100, 100, now);
        for holder in 0..100 {
            assert!(slots.take(&hold(&rule, holder), 1_000, AT(5)).granted);
        }
        assert!(!slots.take(&hold(&rule, 100), 1_000, AT(6)).granted);
        assert!(!due(AT(14)));
        assert!(due(AT(15)));
    }

    /// With a scan of all permits the second is a hundred times as much work.
    #[test]
    fn a_renewal_costs_about_the_same_however_many_permits_are_open() {
        let rule = RuleName::new("r");
        let work = |permits: u128| {
            let slots = OpenSlots::new(100_000);
            for holder in 0..permits {
                assert!(slots.take(&hold(&rule, holder), 100_000, AT(0)).granted);
            }
            tidegate_mutations::yardsticks(|| {
                for holder in (0..permits).step_by(usize::try_from(permits / 100).unwrap()) {
                    assert!(slots.renew(&hold(&rule, holder), AT(1)).is_some());
                }
            })
        };
        let (few, many) = (work(100), work(10_000));
        assert!(
            many < 10.0 * few,
            "{few} yardsticks for 100, {many} for 10,000"
        );
    }

    #[test]
    fn what_has_ended_makes_room() {
        let (slots, rule) = (OpenSlots::new(100), RuleName::new("r"));
        for round in 0..10 {
            let now = AT(round * 20);
            let granted = |holder| slots.take(&hold(&rule, holder), 1_000, now).granted;
            let given = (0..150).filter(|holder| granted(*holder)).count();
            assert_eq!(given, 100);
            // Others have ended too, though nobody asks for them.
            let other = Hold {
                subject: Fingerprint::new(u128::from(round) + 2),
                ..hold(&rule, 1)
            };
            assert!(slots.take(&other, 1, now.plus(AT(10))).granted);
        }
    }
}
