//! Slots of what may be open at once, each with an end of its own.

use std::collections::BTreeMap;

use tidegate_core::store::{Held, Hold};
use tidegate_core::units::Nanos;

/// Who holds a slot of which counter until when.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(BTreeMap<u128, BTreeMap<u128, Nanos>>);

impl Slots {
    fn of(&mut self, hold: &Hold<'_>, now: Nanos) -> &mut BTreeMap<u128, Nanos> {
        let slots = self
            .0
            .entry(hold.rule.counter(hold.subject, 0))
            .or_default();
        slots.retain(|_, until| *until > now);
        slots
    }

    pub(super) fn hold(&mut self, hold: &Hold<'_>, now: Nanos) -> Held {
        let slots = self.of(hold, now);
        let granted = slots.contains_key(&hold.holder) || slots.len() < hold.most as usize;
        if granted {
            slots.insert(hold.holder, now.plus(hold.lasts));
        }
        Held {
            granted,
            open: u32::try_from(slots.len()).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn release(&mut self, hold: &Hold<'_>, now: Nanos) {
        self.of(hold, now).remove(&hold.holder);
    }
}
