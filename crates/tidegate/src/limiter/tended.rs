//! What this node looks after of reservations: those that were made here, until their end, and
//! settlements that the store does not know yet, until it does.
//!
//! Bounded, each kind by itself: settlements wait when the store is away, and must find room however many
//! reservations are open then. Knows neither the store nor what is done about one.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_core::store::Reserve;
use tidegate_core::units::Nanos;

use crate::receipt::{Actual, Receipt};

/// Reservations and settlements that are looked after, of each so many at most.
pub const MOST_TENDED: usize = 1 << 16;
/// How many are looked after in one go.
const AT_ONCE: usize = 1 << 12;

/// A reservation that was made here, or a settlement that the store does not know yet.
#[derive(Clone)]
pub(super) struct Duty {
    pub(super) receipt: Receipt,
    /// When to do something about it, by the local clock, and when it no longer helps.
    pub(super) due: Nanos,
    pub(super) gives_up: Nanos,
    /// What was used; nothing if nobody said.
    pub(super) said: Option<Actual>,
}

/// All that is looked after.
pub(super) struct Tended {
    most: usize,
    tables: Mutex<Tables>,
}

/// By the id of a reservation, which is in one of them.
#[derive(Default)]
struct Tables {
    open: HashMap<u128, Duty>,
    waiting: HashMap<u128, Duty>,
}

impl Default for Tended {
    fn default() -> Self {
        Tended::new(MOST_TENDED)
    }
}

impl Tended {
    fn new(most: usize) -> Self {
        Tended {
            most,
            tables: Mutex::default(),
        }
    }

    /// Looks after one more. Whether there was room.
    pub(super) fn keep(&self, duty: Duty) -> bool {
        let mut tables = self.tables.lock();
        let (id, said) = (duty.receipt.id(), duty.said.is_some());
        let table = tables.of(&duty);
        let room = table.len() < self.most || table.contains_key(&id);
        if room {
            table.insert(id, duty);
        }
        if room && said {
            tables.open.remove(&id);
        }
        room
    }

    pub(super) fn forget(&self, id: u128) {
        let mut tables = self.tables.lock();
        tables.open.remove(&id);
        tables.waiting.remove(&id);
    }

    /// Forgets one that was looked after, unless more has been said of it meanwhile.
    pub(super) fn done(&self, duty: &Duty) {
        let mut tables = self.tables.lock();
        let (id, table) = (duty.receipt.id(), tables.of(duty));
        if table.get(&id).is_some_and(|now| now.said == duty.said) {
            table.remove(&id);
        }
    }

    /// It is too late for what was said: the estimate is still to come back, as if nobody had said anything.
    /// If there is no room, the next reservation of the client brings it back.
    pub(super) fn unsay(&self, duty: &Duty, now: Nanos) {
        let mut tables = self.tables.lock();
        let id = duty.receipt.id();
        let stands = |known: &Duty| known.said == duty.said;
        if tables.waiting.get(&id).is_some_and(stands) {
            tables.waiting.remove(&id);
            tables.open_again(duty.clone(), self.most, now);
        }
    }

    /// Those about which something is to be done now, settlements first; those that no longer matter are
    /// gone, and of settlements what was said. Whoever was named stands behind all others the next time: one that cannot be helped keeps
    /// nobody from being named.
    pub(super) fn due(&self, now: Nanos) -> Vec<Duty> {
        let mut tables = self.tables.lock();
        tables.open.retain(|_, duty| duty.gives_up > now);
        let too_late = tables.waiting.extract_if(|_, duty| duty.gives_up <= now);
        for (_, duty) in too_late.collect::<Vec<_>>() {
            tables.open_again(duty, self.most, now);
        }
        let mut due = named(&mut tables.waiting, now);
        due.extend(named(&mut tables.open, now));
        due
    }
}

impl Tables {
    fn of(&mut self, duty: &Duty) -> &mut HashMap<u128, Duty> {
        match duty.said {
            Some(_) => &mut self.waiting,
            None => &mut self.open,
        }
    }

    fn open_again(&mut self, duty: Duty, most: usize, now: Nanos) {
        if self.open.len() < most {
            let duty = Duty {
                due: now,
                gives_up: now.plus(Reserve::LONGEST),
                said: None,
                ..duty
            };
            self.open.insert(duty.receipt.id(), duty);
        }
    }
}

/// Those of a table that have been due for the longest. They are due anew after all that are due now.
fn named(table: &mut HashMap<u128, Duty>, now: Nanos) -> Vec<Duty> {
    let due = table.values_mut().filter(|duty| duty.due <= now);
    let mut due: Vec<&mut Duty> = due.collect();
    // By the id too, so that a simulation replays.
    due.sort_unstable_by_key(|duty| (duty.due, duty.receipt.id()));
    let named = due.into_iter().take(AT_ONCE).map(|duty| {
        duty.due = now.plus(Nanos::new(1));
        duty.clone()
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(100);

    fn duty(id: u128, due: Nanos, said: Option<u64>) -> Duty {
        Duty {
            receipt: Receipt::of_no_charge(id),
            due,
            gives_up: NOW.plus(NOW),
            said: said.map(Actual::cost),
        }
    }

    fn ids(tended: &Tended, now: Nanos) -> Vec<u128> {
        let due = tended.due(now);
        due.iter().map(|duty| duty.receipt.id()).collect()
    }

    #[test]
    fn settlements_find_room_however_many_reservations_are_open() {
        let tended = Tended::new(2);
        let later = NOW.plus(Nanos::new(1));
        assert!(tended.keep(duty(1, later, None)) && tended.keep(duty(2, later, None)));
        assert!(!tended.keep(duty(3, later, None)));
        assert!(tended.keep(duty(4, NOW, Some(5))) && tended.keep(duty(1, NOW, Some(5))));
        assert!(!tended.keep(duty(5, NOW, Some(5))));
        assert!(
            tended.keep(duty(3, later, None)),
            "the room of what was settled"
        );
        let mut waiting = ids(&tended, NOW);
        waiting.sort_unstable();
        assert_eq!(waiting, [1, 4]);
    }

    #[test]
    fn what_was_said_meanwhile_is_not_forgotten() {
        let tended = Tended::new(2);
        tended.keep(duty(1, NOW, None));
        let due = tended.due(NOW);
        tended.keep(duty(1, NOW, Some(5)));
        tended.done(&due[0]);
        assert_eq!(ids(&tended, NOW), [1]);
    }

    #[test]
    fn of_a_settlement_that_is_given_up_the_estimate_is_still_to_come_back() {
        let tended = Tended::new(2);
        let late = NOW.plus(NOW);
        tended.keep(duty(1, NOW, None));
        tended.keep(duty(1, NOW, Some(5)));
        assert_eq!(tended.due(NOW)[0].said, Some(Actual::cost(5)));
        let due = tended.due(late);
        assert_eq!((due.len(), &due[0].said), (1, &None));
        assert_eq!(ids(&tended, late.plus(Reserve::LONGEST)), [0; 0]);
    }

    #[test]
    fn what_was_said_anew_stands_when_the_word_before_came_too_late() {
        let tended = Tended::new(2);
        tended.keep(duty(1, NOW, Some(5)));
        let due = tended.due(NOW);
        tended.keep(duty(1, NOW, Some(6)));
        tended.unsay(&due[0], NOW);
        let due = tended.due(NOW);
        assert_eq!((due.len(), &due[0].said), (1, &Some(Actual::cost(6))));
    }

    /// Those that get no answer stay due. If they were named first each time, the rest never were.
    #[test]
    fn nobody_is_kept_from_being_named() {
        let tended = Tended::default();
        let all = AT_ONCE as u128 + 100;
        for id in 0..all {
            tended.keep(duty(id, NOW, None));
        }
        let mut named = ids(&tended, NOW);
        assert_eq!(named.len(), AT_ONCE);
        named.extend(ids(&tended, NOW.plus(Nanos::new(1))));
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len() as u128, all);
    }
}
