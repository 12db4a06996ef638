//! Slots of what may be open at once, each with an end of its own.

use std::collections::BTreeMap;

use tidegate_core::store::{Held, Hold, Source};
use tidegate_core::units::Nanos;

/// Who holds a slot of which counter until when.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(BTreeMap<u128, BTreeMap<u128, Nanos>>);

impl Slots {
    fn of(&mut self, hold: &Hold<'_>, now: Nanos) -> &mut BTreeMap<u128, Nanos> {
        let slots = self.0.entry(hold.counter()).or_default();
        slots.retain(|_, until| *until > now);
        slots
    }

    pub(super) fn hold(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        let slots = self.of(hold, now);
        let granted = slots.contains_key(&hold.holder) || slots.len() < hold.most as usize;
        if granted {
            slots.insert(hold.holder, now.plus(hold.lasts));
        }
        answer(granted, slots)
    }

    pub(super) fn renew(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        let slots = self.of(hold, now);
        let own = slots.get_mut(&hold.holder);
        let granted = own.map(|until| *until = now.plus(hold.lasts)).is_some();
        answer(granted, slots)
    }

    pub(super) fn release(&mut self, hold: &Hold<'_>, now: Nanos) {
        self.of(hold, now).remove(&hold.holder);
    }

    /// Frees all slots of a counter; how many there were.
    pub(super) fn vacate(&mut self, counter: u128, now: Nanos) -> u64 {
        let freed = self.0.remove(&counter).unwrap_or_default();
        freed.values().filter(|until| **until > now).count() as u64
    }
}

fn answer(granted: bool, slots: &BTreeMap<u128, Nanos>) -> Held {
    Held {
        granted,
        open: u32::try_from(slots.len()).unwrap_or(u32::MAX),
        source: Source::Exact,
    }
}
