//! What this node looks after of reservations: those that were made here, until their end, and
//! settlements that the store does not know yet, until it does.
//!
//! Bounded, each kind by itself: settlements wait when the store is away, and must find room however many
//! reservations are open then. Knows neither the store nor what is done about one.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use tidegate_core::store::Reserve;
use tidegate_core::units::Nanos;

use crate::receipt::{Actual, Receipt};

/// Reservations and settlements that are looked after, of each so many at most.
pub const MOST_TENDED: usize = 1 << 16;
/// How many are looked after in one go.
const AT_ONCE: usize = 1 << 12;
/// How many of them under one lock. A divisor of [`AT_ONCE`].
const CHUNK: usize = 256;

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
    open: DutyQueue,
    waiting: DutyQueue,
}

/// Duties by id, in the order in which they are due and in that in which they are given up. No step takes
/// longer because there are many.
#[derive(Default)]
struct DutyQueue {
    duties: HashMap<u128, Duty>,
    by_due: BTreeSet<(Nanos, u128)>,
    by_end: BTreeSet<(Nanos, u128)>,
}

impl DutyQueue {
    fn len(&self) -> usize {
        self.duties.len()
    }

    fn get(&self, id: u128) -> Option<&Duty> {
        self.duties.get(&id)
    }

    fn insert(&mut self, duty: Duty) {
        let id = duty.receipt.id();
        self.remove(id);
        self.by_due.insert((duty.due, id));
        self.by_end.insert((duty.gives_up, id));
        self.duties.insert(id, duty);
    }

    fn remove(&mut self, id: u128) -> Option<Duty> {
        let duty = self.duties.remove(&id)?;
        self.by_due.remove(&(duty.due, id));
        self.by_end.remove(&(duty.gives_up, id));
        Some(duty)
    }

    /// Takes out one that is given up by `now`.
    fn pop_given_up(&mut self, now: Nanos) -> Option<Duty> {
        let (end, id) = *self.by_end.first()?;
        if end > now {
            return None;
        }
        self.remove(id)
    }

    /// The one that has been due for the longest. It is due anew after all that are due now.
    fn next_due(&mut self, now: Nanos) -> Option<Duty> {
        let (due, id) = *self.by_due.first()?;
        if due > now {
            return None;
        }
        let duty = self.duties.get_mut(&id)?;
        duty.due = now.plus(Nanos::new(1));
        self.by_due.pop_first();
        self.by_due.insert((duty.due, id));
        Some(duty.clone())
    }
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
        let queue = tables.of(&duty);
        let room = queue.len() < self.most || queue.get(id).is_some();
        if room {
            queue.insert(duty);
        }
        if room && said {
            tables.open.remove(id);
        }
        room
    }

    pub(super) fn forget(&self, id: u128) {
        let mut tables = self.tables.lock();
        tables.open.remove(id);
        tables.waiting.remove(id);
    }

    /// Forgets one that was looked after, unless more has been said of it meanwhile.
    pub(super) fn done(&self, duty: &Duty) {
        let mut tables = self.tables.lock();
        let (id, queue) = (duty.receipt.id(), tables.of(duty));
        if queue.get(id).is_some_and(|now| now.said == duty.said) {
            queue.remove(id);
        }
    }

    /// It is too late for what was said: the estimate is still to come back, as if nobody had said anything.
    /// If there is no room, the next reservation of the client brings it back.
    pub(super) fn unsay(&self, duty: &Duty, now: Nanos) {
        let mut tables = self.tables.lock();
        let id = duty.receipt.id();
        let stands = |known: &Duty| known.said == duty.said;
        if tables.waiting.get(id).is_some_and(stands) {
            tables.waiting.remove(id);
            tables.open_again(duty.clone(), self.most, now);
        }
    }

    /// Those that are due now, settlements first. Duties that were given up are dropped before, and of such
    /// a settlement what was used: its estimate is still to be refunded. A duty that is returned is due after
    /// all others the next time, so that one without an answer holds up no other.
    ///
    /// The lock that reservations and settlements need is taken for [`CHUNK`] duties at a time.
    pub(super) fn due(&self, now: Nanos) -> Vec<Duty> {
        while self.drop_given_up(now) == CHUNK {}
        let mut due = self.take_due(|tables| &mut tables.waiting, now);
        due.extend(self.take_due(|tables| &mut tables.open, now));
        due
    }

    fn drop_given_up(&self, now: Nanos) -> usize {
        let mut tables = self.tables.lock();
        for dropped in 0..CHUNK {
            if let Some(settlement) = tables.waiting.pop_given_up(now) {
                tables.open_again(settlement, self.most, now);
            } else if tables.open.pop_given_up(now).is_none() {
                return dropped;
            }
        }
        CHUNK
    }

    fn take_due(&self, of: impl Fn(&mut Tables) -> &mut DutyQueue, now: Nanos) -> Vec<Duty> {
        let mut due = Vec::new();
        while due.len() < AT_ONCE {
            let mut tables = self.tables.lock();
            let queue = of(&mut tables);
            let before = due.len();
            due.extend(std::iter::from_fn(|| queue.next_due(now)).take(CHUNK));
            if due.len() < before + CHUNK {
                break;
            }
        }
        due
    }
}

impl Tables {
    fn of(&mut self, duty: &Duty) -> &mut DutyQueue {
        match duty.said {
            Some(_) => &mut self.waiting,
            None => &mut self.open,
        }
    }

    fn open_again(&mut self, duty: Duty, most: usize, now: Nanos) {
        if self.open.len() < most {
            self.open.insert(Duty {
                due: now,
                gives_up: now.plus(Reserve::LONGEST),
                said: None,
                ..duty
            });
        }
    }
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
