//! The slots of concurrency limits that this node has given out, so that they outlive the store.
//!
//! Kept true: a slot lasts here no longer than in the store, because its end is reckoned from before
//! the store was asked; one that was given back is not open, though the store may have to hear of it
//! yet. Bounded: beyond that a slot is known to the store alone. Knows no store; time is injected.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::store::{Held, Hold, Source, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::Sweep;
use tidegate_core::units::Nanos;

/// What this node knows of slots.
pub(super) struct OpenSlots {
    table: Mutex<Table>,
    most: usize,
}

#[derive(Default)]
struct Table {
    of: BTreeMap<u128, Owners>,
    slots: usize,
    /// When those that have ended are looked for everywhere.
    sweep: Sweep,
}

/// The slots of one subject under one rule.
struct Owners {
    subject: Fingerprint,
    rule: RuleName,
    terms: Terms,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    holder: u128,
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
            table.slots -= owners.slots.len();
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
        let open = |slot: &Slot| slot.known != Known::Leaving;
        self.table.lock().news(holds, open, now)
    }

    /// Every slot of which the store has to hear.
    pub(super) fn due(&self, holds: impl Fn(Fingerprint) -> bool, now: Nanos) -> Vec<News> {
        let due = |slot: &Slot| slot.known != Known::There;
        self.table.lock().news(holds, due, now)
    }
}

impl Table {
    /// How many are open, and the holder's own.
    fn look(&mut self, hold: &Hold<'_>, now: Nanos) -> (u32, Option<Slot>) {
        let counter = hold.counter();
        let Some(owners) = self.of.get_mut(&counter) else {
            return (0, None);
        };
        let before = owners.slots.len();
        owners.slots.retain(|slot| slot.until > now);
        self.slots -= before - owners.slots.len();
        let open = owners.slots.iter().filter(|s| s.known != Known::Leaving);
        let open = u32::try_from(open.count()).unwrap_or(u32::MAX);
        let own = owners.slots.iter().find(|slot| slot.holder == hold.holder);
        let own = own.copied();
        if owners.slots.is_empty() {
            self.of.remove(&counter);
        }
        (open, own)
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
        let holder = hold.holder;
        let slots = self.of.get_mut(&hold.counter()).map(|own| &mut own.slots);
        let own = slots.and_then(|slots| slots.iter_mut().find(|slot| slot.holder == holder));
        if let Some(own) = own {
            (own.until, own.known) = (until, known);
            self.sweep.note(until);
            return true;
        }
        if self.sweep.due(self.slots, most, now) {
            self.drop_ended(now);
        }
        if self.slots >= most {
            return false;
        }
        let owners = self.of.entry(hold.counter()).or_insert_with(|| Owners {
            subject: hold.subject,
            rule: hold.rule.clone(),
            terms: *hold.terms,
            slots: Vec::new(),
        });
        owners.slots.push(Slot {
            holder,
            until,
            known,
        });
        self.slots += 1;
        self.sweep.note(until);
        true
    }

    fn remove(&mut self, hold: &Hold<'_>) {
        let counter = hold.counter();
        let Some(owners) = self.of.get_mut(&counter) else {
            return;
        };
        let before = owners.slots.len();
        owners.slots.retain(|slot| slot.holder != hold.holder);
        self.slots -= before - owners.slots.len();
        if owners.slots.is_empty() {
            self.of.remove(&counter);
        }
    }

    fn drop_ended(&mut self, now: Nanos) {
        self.of.retain(|_, owners| {
            owners.slots.retain(|slot| slot.until > now);
            !owners.slots.is_empty()
        });
        self.slots = self.of.values().map(|owners| owners.slots.len()).sum();
        let left = self.of.values().flat_map(|owners| &owners.slots);
        self.sweep.done(left.map(|slot| slot.until), now);
    }

    fn news(
        &self,
        holds: impl Fn(Fingerprint) -> bool,
        of: impl Fn(&Slot) -> bool,
        now: Nanos,
    ) -> Vec<News> {
        let owners = self.of.values().filter(|owners| holds(owners.subject));
        let news = owners.flat_map(|owners| {
            let slots = owners.slots.iter().filter(|slot| slot.until > now);
            slots.filter(|slot| of(slot)).map(|slot| News {
                subject: owners.subject,
                rule: owners.rule.clone(),
                terms: owners.terms,
                holder: slot.holder,
                left: slot.until.since(now),
                leaving: slot.known == Known::Leaving,
            })
        });
        news.collect()
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
