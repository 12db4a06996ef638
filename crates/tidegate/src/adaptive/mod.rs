//! Concurrency limits that this node finds by itself, for each rule and subject.
//!
//! Kept true: a slot that nobody gives back ends by itself and is no sample, because nobody knows how
//! long its request took; and the table is bounded: subjects beyond that share a limit of their rule.
//! Knows no store: other nodes find limits of their own.

mod gradient;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::Sweep;
use tidegate_core::units::Nanos;

pub use self::gradient::Gradient;

/// Subjects with a limit of their own.
pub const MOST_ADAPTIVE: usize = 10_000;

/// Whom subjects are that share a limit.
const EVERYBODY_ELSE: Fingerprint = Fingerprint::new(0);

/// The limits of this node.
#[derive(Debug, Default)]
pub(crate) struct Adaptive(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    lines: BTreeMap<u128, Line>,
    /// When subjects are looked for that have nothing open.
    sweep: Sweep,
}

/// What is open of one subject under one rule.
#[derive(Debug)]
struct Line {
    rule: RuleName,
    gradient: Gradient,
    open: BTreeMap<u128, Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Nanos,
    until: Nanos,
}

/// How a limit answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) granted: bool,
    pub(crate) open: u32,
    pub(crate) limit: u32,
}

impl Adaptive {
    /// Takes a slot until `until`.
    pub(crate) fn take(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        holder: u128,
        now: Nanos,
        until: Nanos,
    ) -> Taken {
        let mut table = self.0.lock();
        let line = table.place(rule, subject, now);
        line.open.retain(|_, open| open.until > now);
        let (open, limit) = (line.len(), line.gradient.limit());
        let granted = open < limit;
        if granted {
            line.open.insert(holder, Open { since: now, until });
            table.sweep.note(until);
        }
        Taken {
            granted,
            open: open + u32::from(granted),
            limit,
        }
    }

    /// Lets a slot last until `until`; whether it was there.
    pub(crate) fn renew(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        holder: u128,
        now: Nanos,
        until: Nanos,
    ) -> bool {
        let own = |line: &mut Line| {
            let open = line.open.get_mut(&holder);
            let open = open.filter(|open| open.until > now);
            open.map(|open| open.until = until)
        };
        self.find(rule, subject, own).is_some()
    }

    /// A request has ended: its slot is free, and how long it took is learnt.
    pub(crate) fn release(&self, rule: &RuleName, subject: Fingerprint, holder: u128, now: Nanos) {
        let learnt = self.find(rule, subject, |line| {
            let in_flight = line.len();
            let open = line.open.remove(&holder)?;
            line.gradient.sample(now.since(open.since), in_flight);
            Some(())
        });
        let _released_before_or_expired = learnt;
    }

    /// Frees the slot of a request that never began.
    pub(crate) fn forget(&self, rule: &RuleName, subject: Fingerprint, holder: u128) {
        let _forgotten = self.find(rule, subject, |line| line.open.remove(&holder));
    }

    /// Frees all slots of a subject, without learning anything; how many were open. Those that others share
    /// stay.
    pub(crate) fn vacate(&self, rule: &RuleName, subject: Fingerprint, now: Nanos) -> u64 {
        let Table { lines, sweep } = &mut *self.0.lock();
        let Some(line) = lines.get_mut(&rule.counter(subject, 0)) else {
            return 0;
        };
        line.open.retain(|_, open| open.until > now);
        sweep.note(Nanos::ZERO); // it need not be waited for
        let freed = line.open.len() as u64;
        line.open.clear();
        freed
    }

    /// The lowest limit that any subject of each rule has now.
    pub(crate) fn limits(&self) -> BTreeMap<String, u32> {
        let table = self.0.lock();
        let mut limits: BTreeMap<&str, u32> = BTreeMap::new();
        for line in table.lines.values() {
            let limit = line.gradient.limit();
            let lowest = limits.entry(line.rule.as_str()).or_insert(limit);
            *lowest = limit.min(*lowest);
        }
        let limits = limits.into_iter();
        limits
            .map(|(rule, limit)| (rule.to_owned(), limit))
            .collect()
    }

    /// Looks where a subject may be: in its own line, or in that of everybody else.
    fn find<T>(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        mut with: impl FnMut(&mut Line) -> Option<T>,
    ) -> Option<T> {
        let Table { lines, sweep } = &mut *self.0.lock();
        let places = [subject, EVERYBODY_ELSE].map(|subject| rule.counter(subject, 0));
        places.iter().find_map(|place| {
            let line = lines.get_mut(place)?;
            let found = with(line)?;
            if line.open.is_empty() {
                sweep.note(Nanos::ZERO); // it need not be waited for
            }
            Some(found)
        })
    }
}

impl Line {
    fn len(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }
}

impl Table {
    fn place(&mut self, rule: &RuleName, subject: Fingerprint, now: Nanos) -> &mut Line {
        let mut counter = rule.counter(subject, 0);
        if self.is_full() && !self.lines.contains_key(&counter) {
            if self.sweep.due(self.lines.len(), MOST_ADAPTIVE, now) {
                self.drop_idle(now);
            }
            if self.is_full() {
                counter = rule.counter(EVERYBODY_ELSE, 0);
            }
        }
        self.lines.entry(counter).or_insert_with(|| Line {
            rule: rule.clone(),
            gradient: Gradient::default(),
            open: BTreeMap::new(),
        })
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= MOST_ADAPTIVE
    }

    /// What a subject with nothing open has learnt is the least to lose.
    fn drop_idle(&mut self, now: Nanos) {
        self.lines.retain(|_, line| {
            line.open.retain(|_, open| open.until > now);
            !line.open.is_empty()
        });
        let left = self.lines.values().flat_map(|line| line.open.values());
        self.sweep.done(left.map(|open| open.until), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn a_slot_that_nobody_gives_back_ends_by_itself_and_teaches_nothing() {
        let (adaptive, rule, who) = (Adaptive::default(), RuleName::new("r"), Fingerprint::new(7));
        let take = |holder, now| adaptive.take(&rule, who, holder, AT(now), AT(now + 100));
        for holder in 0..20 {
            assert!(take(holder, 0).granted);
        }
        assert!(!take(20, 50).granted);
        assert!(adaptive.renew(&rule, who, 3, AT(50), AT(200)));
        let later = take(21, 150);
        assert_eq!((later.granted, later.open), (true, 2), "3 was renewed");
        assert!(!adaptive.renew(&rule, who, 4, AT(150), AT(300)));
        adaptive.release(&rule, who, 4, AT(150));
        assert_eq!(adaptive.limits()["r"], 20);
    }

    #[test]
    fn a_full_table_is_gone_through_only_when_something_has_ended() {
        let (adaptive, rule) = (Adaptive::default(), RuleName::new("r"));
        let due = |now| {
            let table = adaptive.0.lock();
            table.sweep.due(MOST_ADAPTIVE, MOST_ADAPTIVE, AT(now))
        };
        let take = |subject: u128| {
            let whose = Fingerprint::new(subject);
            adaptive.take(&rule, whose, subject, AT(0), AT(10_000))
        };
        for subject in 1..=u128::try_from(MOST_ADAPTIVE).unwrap() + 1 {
            assert!(take(subject).granted);
        }
        assert!(!due(9_999));
        assert!(due(10_000));
        adaptive.release(&rule, Fingerprint::new(7), 7, AT(500));
        assert!(due(500), "one has nothing open any more");
    }

    #[test]
    fn the_table_is_bounded_and_what_does_not_fit_shares_a_limit() {
        let (adaptive, rule) = (Adaptive::default(), RuleName::new("r"));
        let subjects = u128::try_from(MOST_ADAPTIVE).unwrap() + 100;
        let take = |subject, now| {
            let subject = Fingerprint::new(subject + 1);
            adaptive.take(&rule, subject, subject.bits(), now, now.plus(AT(100)))
        };
        let granted = (0..subjects).filter(|s| take(*s, AT(0)).granted).count();
        assert_eq!(granted, MOST_ADAPTIVE + 20);
        assert_eq!(adaptive.0.lock().lines.len(), MOST_ADAPTIVE + 1);
        let shared = Fingerprint::new(subjects - 99);
        adaptive.release(&rule, shared, shared.bits(), AT(1));
        assert!(take(subjects, AT(1)).granted, "one of the shared is free");
        assert!(take(subjects + 1, AT(500)).granted, "room again");
    }
}
