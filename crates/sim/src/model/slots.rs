//! Slots of what may be open at once, each with an end of its own.

use std::collections::BTreeMap;

use tidegate_core::store::{Held, Hold, Source};
use tidegate_core::units::Nanos;

/// Until when each holder of a counter has a slot.
type Holders = BTreeMap<u128, Nanos>;

/// Who holds a slot of which counter until when.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    of: BTreeMap<u128, Holders>,
    /// The counter and the holder of each write, and what it replaced, for a replica that has not heard
    /// of it.
    journal: Vec<(u128, u128, Option<Nanos>)>,
}

impl Slots {
    fn of(&mut self, hold: &Hold<'_>, now: Nanos) -> &mut Holders {
        let slots = self.of.entry(hold.counter()).or_default();
        slots.retain(|_, until| *until > now);
        slots
    }

    fn write(&mut self, hold: &Hold<'_>, until: Option<Nanos>) {
        let (counter, holder) = (hold.counter(), hold.holder);
        let slots = self.of.entry(counter).or_default();
        let was = match until {
            Some(until) => slots.insert(holder, until),
            None => slots.remove(&holder),
        };
        self.journal.push((counter, holder, was));
    }

    pub(super) fn hold(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        let slots = self.of(hold, now);
        let own = slots.get(&hold.holder).copied();
        let granted = own.is_some() || slots.len() < hold.most as usize;
        if granted {
            let until = now.plus(hold.lasts);
            self.write(hold, own.max(Some(until)));
        }
        answer(granted, self.of(hold, now))
    }

    pub(super) fn renew(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        let granted = self.of(hold, now).contains_key(&hold.holder);
        if granted {
            self.write(hold, Some(now.plus(hold.lasts)));
        }
        answer(granted, self.of(hold, now))
    }

    pub(super) fn release(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        if self.of(hold, now).contains_key(&hold.holder) {
            self.write(hold, None);
        }
        answer(false, self.of(hold, now))
    }

    /// Somebody else who holds a slot of the same counter, if anybody does.
    pub(super) fn another(&mut self, hold: &Hold<'_>, now: Nanos) -> Option<u128> {
        let mut holders = self.of(hold, now).keys();
        holders.find(|holder| **holder != hold.holder).copied()
    }

    /// How many writes there have been since the last call to `heard`.
    pub(super) fn unheard(&self) -> usize {
        self.journal.len()
    }

    /// The replica has heard of the oldest `writes`.
    pub(super) fn heard(&mut self, writes: usize) {
        self.journal.drain(..writes.min(self.journal.len()));
    }

    /// Becomes what the replica has heard of.
    pub(super) fn fall_back(&mut self) {
        for (counter, holder, was) in std::mem::take(&mut self.journal).into_iter().rev() {
            let slots = self.of.entry(counter).or_default();
            match was {
                Some(until) => slots.insert(holder, until),
                None => slots.remove(&holder),
            };
        }
    }

    /// Frees all slots of a counter; how many there were.
    pub(super) fn vacate(&mut self, counter: u128, now: Nanos) -> u64 {
        let freed = self.of.remove(&counter).unwrap_or_default();
        let written = freed
            .iter()
            .map(|(holder, until)| (counter, *holder, Some(*until)));
        self.journal.extend(written);
        freed.values().filter(|until| **until > now).count() as u64
    }
}

fn answer(granted: bool, slots: &Holders) -> Held {
    Held {
        granted,
        open: u32::try_from(slots.len()).unwrap_or(u32::MAX),
        source: Source::Exact,
    }
}
