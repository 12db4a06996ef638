//! Concurrency limits that this node finds by itself, for each rule and subject.
//!
//! Kept true: a permit that nobody releases ends by itself and is no sample, because nobody knows how long its
//! request took. The table is bounded twice. Subjects beyond the first bound share limits of their rule, one
//! in 256 each, so that they are limited in small groups and not locked out together. Permits beyond the
//! second are only counted, in the [`Crowd`] of their limit. Knows no store: other nodes find limits of
//! their own.

mod gradient;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::Sweep;
use tidegate_core::units::Nanos;

pub use self::gradient::Gradient;
use crate::crowd::Crowd;

/// Subjects with a limit of their own.
pub const MOST_ADAPTIVE: usize = 10_000;
/// Permits that are remembered by holder.
pub const MAX_ADAPTIVE_PERMITS: usize = 100_000;
/// Limits of a rule that subjects share who have none of their own.
const SHARED_LIMITS: u64 = 256;
/// What a limit and a permit take in memory, about.
const LIMIT_BYTES: u64 = 640;
const PERMIT_BYTES: u64 = 64;

/// The limits of this node.
#[derive(Debug, Default)]
pub(crate) struct Adaptive(Mutex<Table>);

#[derive(Debug)]
struct Table {
    max_subjects: usize,
    max_permits: usize,
    lines: BTreeMap<u128, Line>,
    /// Permits of all of them that are remembered by holder.
    permits: usize,
    /// When subjects are looked for that have nothing open.
    sweep: Sweep,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            max_subjects: MOST_ADAPTIVE,
            max_permits: MAX_ADAPTIVE_PERMITS,
            lines: BTreeMap::new(),
            permits: 0,
            sweep: Sweep::default(),
        }
    }
}

/// What is open of one subject under one rule.
#[derive(Debug)]
struct Line {
    rule: RuleName,
    gradient: Gradient,
    open: BTreeMap<u128, Open>,
    /// Permits without a holder, as the words of a [`Crowd`].
    crowd: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Nanos,
    until: Nanos,
}

/// How a limit answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) granted: bool,
    pub(crate) open: u32,
    pub(crate) limit: u32,
}

impl Adaptive {
    /// Limits and permits that take no more than `bytes`, about.
    pub(crate) fn within(bytes: u64) -> Self {
        let count = |each: u64, max: usize| {
            let fit = usize::try_from(bytes / 2 / each).unwrap_or(max);
            fit.clamp(1, max)
        };
        Adaptive(Mutex::new(Table {
            max_subjects: count(LIMIT_BYTES, MOST_ADAPTIVE),
            max_permits: count(PERMIT_BYTES, MAX_ADAPTIVE_PERMITS),
            ..Table::default()
        }))
    }

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
        let counter = table.place(rule, subject, now);
        table.take(counter, holder, now, until)
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
        if self.find(rule, subject, own).is_some() {
            return true;
        }
        self.0.lock().renew_in_crowd(rule, subject, now, until)
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
        let table = &mut *self.0.lock();
        let Some(line) = table.lines.get_mut(&rule.counter(subject, 0)) else {
            return 0;
        };
        table.permits -= line.drop_ended(now);
        table.sweep.note(Nanos::ZERO); // it need not be waited for
        let freed = line.open.len();
        table.permits -= freed;
        line.open.clear();
        freed as u64
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

    /// Looks where the permits of a subject may be: with its own limit, or with one that it shares.
    fn find<T>(
        &self,
        rule: &RuleName,
        subject: Fingerprint,
        mut with: impl FnMut(&mut Line) -> Option<T>,
    ) -> Option<T> {
        let table = &mut *self.0.lock();
        places(rule, subject).iter().find_map(|place| {
            let line = table.lines.get_mut(place)?;
            let before = line.open.len();
            let found = with(line)?;
            table.permits -= before - line.open.len();
            if line.open.is_empty() {
                table.sweep.note(Nanos::ZERO); // it need not be waited for
            }
            Some(found)
        })
    }
}

/// The limit of a subject, and the one that it shares if it has none.
fn places(rule: &RuleName, subject: Fingerprint) -> [u128; 2] {
    let shared = Fingerprint::new(u128::from(subject.seed() % SHARED_LIMITS));
    [subject, shared].map(|subject| rule.counter(subject, 0))
}

fn millis(at: Nanos) -> u64 {
    at.get() / 1_000_000
}

impl Line {
    fn new(rule: &RuleName) -> Self {
        Line {
            rule: rule.clone(),
            gradient: Gradient::default(),
            open: BTreeMap::new(),
            crowd: [0; 2],
        }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }

    /// Drops the permits that have ended; how many.
    fn drop_ended(&mut self, now: Nanos) -> usize {
        let before = self.open.len();
        self.open.retain(|_, open| open.until > now);
        before - self.open.len()
    }

    fn crowd(&self, now: Nanos) -> Crowd {
        Crowd::read(self.crowd, millis(now))
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.open.is_empty() && self.crowd(now).count() == 0
    }
}

impl Table {
    /// Takes a permit of a limit. If it cannot be remembered by holder it is only counted.
    fn take(&mut self, counter: u128, holder: u128, now: Nanos, until: Nanos) -> Taken {
        let Some(line) = self.lines.get_mut(&counter) else {
            return Taken::default();
        };
        self.permits -= line.drop_ended(now);
        let mut crowd = line.crowd(now);
        let (open, limit) = (line.len() + crowd.count(), line.gradient.limit());
        let granted = open < limit;
        if granted && self.permits < self.max_permits {
            let before = line.open.insert(holder, Open { since: now, until });
            self.permits += usize::from(before.is_none());
            self.sweep.note(until);
        } else if granted {
            crowd.add(millis(until) + 1);
            self.sweep.note(until);
        }
        line.crowd = crowd.words();
        Taken {
            granted,
            open: open + u32::from(granted),
            limit,
        }
    }

    /// A permit of a crowd has no name, so its renewal counts as another.
    fn renew_in_crowd(
        &mut self,
        rule: &RuleName,
        subject: Fingerprint,
        now: Nanos,
        until: Nanos,
    ) -> bool {
        let of = places(rule, subject);
        let crowded = |line: &&mut Line| line.crowd(now).count() > 0;
        let own = of
            .iter()
            .find(|place| self.lines.get_mut(place).filter(crowded).is_some());
        let Some(line) = own.and_then(|place| self.lines.get_mut(place)) else {
            return false;
        };
        self.permits -= line.drop_ended(now);
        let mut crowd = line.crowd(now);
        let granted = line.len() + crowd.count() < line.gradient.limit();
        if granted {
            crowd.add(millis(until) + 1);
            line.crowd = crowd.words();
        }
        granted
    }

    /// Finds or makes the limit of a subject, or the one that it shares.
    fn place(&mut self, rule: &RuleName, subject: Fingerprint, now: Nanos) -> u128 {
        let [own, shared] = places(rule, subject);
        let mut counter = own;
        if self.is_full() && !self.lines.contains_key(&own) {
            if self.sweep.due(self.lines.len(), self.max_subjects, now) {
                self.drop_idle(now);
            }
            if self.is_full() {
                counter = shared;
            }
        }
        self.lines.entry(counter).or_insert_with(|| Line::new(rule));
        counter
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= self.max_subjects
    }

    /// What a subject with nothing open has learnt is the least to lose.
    fn drop_idle(&mut self, now: Nanos) {
        self.lines.retain(|_, line| {
            self.permits -= line.drop_ended(now);
            !line.is_idle(now)
        });
        let left = self.lines.values().flat_map(|line| {
            let crowd = Nanos::from_millis(line.crowd(now).end_ms());
            let crowd = (line.crowd(now).count() > 0).then_some(crowd);
            line.open.values().map(|open| open.until).chain(crowd)
        });
        self.sweep.done(left, now);
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

    /// Ten thousand strangers with one permit each shared one limit of 20 with everybody else: twenty more,
    /// and the next client was denied.
    #[test]
    fn the_table_is_bounded_and_newcomers_share_limits_in_small_groups() {
        let (adaptive, rule) = (Adaptive::default(), RuleName::new("r"));
        let subjects = u128::try_from(MOST_ADAPTIVE).unwrap() + 1_000;
        let take = |subject: u128, now| {
            let subject = Fingerprint::new(subject + 1_000);
            adaptive.take(&rule, subject, subject.bits(), now, now.plus(AT(100)))
        };
        assert!((0..subjects).all(|subject| take(subject, AT(0)).granted));
        let lines = adaptive.0.lock().lines.len();
        assert_eq!(
            lines,
            MOST_ADAPTIVE + usize::try_from(SHARED_LIMITS).unwrap()
        );
        let group = |subject: u128| subjects + subject * u128::from(SHARED_LIMITS);
        let granted = (0..100).filter(|subject| take(group(*subject), AT(0)).granted);
        assert!(
            (15..=17).contains(&granted.count()),
            "20 in the group, with 3 or 4 before"
        );
        let last = Fingerprint::new(group(0) + 1_000);
        adaptive.release(&rule, last, last.bits(), AT(1));
        assert!(take(group(200), AT(1)).granted, "one of the group is free");
        assert!(take(subjects + 1, AT(500)).granted, "room again");
        assert_eq!(adaptive.0.lock().lines.len(), 1);
    }

    /// Permits were bounded by 200 for each of 10,000 subjects: 100 MB beside the cap.
    #[test]
    fn permits_beyond_the_bound_are_counted_without_their_holders() {
        let (adaptive, rule) = (Adaptive::within(4 * 2 * PERMIT_BYTES), RuleName::new("r"));
        assert_eq!(adaptive.0.lock().max_permits, 4);
        let who = Fingerprint::new(1_000);
        let take = |holder, now| adaptive.take(&rule, who, holder, AT(now), AT(now + 100));
        assert!((0..20).all(|holder| take(holder, 0).granted));
        let full = take(20, 1);
        assert_eq!((full.granted, full.open), (false, 20));
        assert_eq!(adaptive.0.lock().permits, 4);
        adaptive.release(&rule, who, 3, AT(2));
        adaptive.release(&rule, who, 19, AT(2));
        assert!(take(21, 2).granted, "3 was remembered and is free");
        assert!(!take(22, 2).granted, "19 was not, and ends by itself");
        assert!(
            !adaptive.renew(&rule, who, 19, AT(2), AT(102)),
            "it is full"
        );
        assert!(adaptive.renew(&rule, who, 0, AT(50), AT(150)));
        let later = take(23, 110);
        assert_eq!(
            (later.granted, later.open),
            (true, 2),
            "all but 0 have ended"
        );
    }
}
