//! Room, fairness, and the cost of a call.

use std::borrow::Cow;

use super::*;
use crate::algorithms::{Algorithm, Limit, Precision, Spec};
use crate::store::{ChargeSet, Role, RuleOptions};
use crate::subject::{Fingerprint, RuleName};

const START: Nanos = Nanos::from_secs(1_000);
const TTL: Nanos = Nanos::from_secs(10);

fn at(secs: u64) -> Nanos {
    START.plus(Nanos::from_secs(secs))
}

/// A ledger, and one charge of one subject to record in it.
struct LedgerFixture {
    ledger: ReservationLedger,
    limit: Limit,
    rule: RuleName,
}

impl LedgerFixture {
    fn new(max: usize) -> Self {
        let spec = Spec::new(Algorithm::FixedWindow, 10, TTL);
        LedgerFixture {
            ledger: ReservationLedger::new(max),
            limit: Limit::compile(&spec, Precision::Memory).expect("a limit"),
            rule: RuleName::new("tokens"),
        }
    }

    /// Reserves for a subject, as a store does. Returns whether there was room.
    fn reserve(&mut self, subject: u128, id: u128, now: Nanos, ttl: Nanos) -> bool {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let reserve = Reserve { id, ttl, set };
        let room = self.ledger.make_room(&reserve, now).is_ok();
        if room {
            self.ledger.record(&reserve, &reserve.set.charges[0], now);
        }
        room
    }

    fn check_room(&mut self, subject: u128) -> Result<(), LedgerFullError> {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let (id, ttl) = (0, TTL);
        self.ledger.make_room(&Reserve { id, ttl, set }, START)
    }

    fn settle(&mut self, subject: u128, id: u128, charged_at: Nanos, used: Used) -> ReservationState {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let settle = Settle { id, charged_at, expires_at: charged_at.plus(TTL), set, used };
        self.ledger.close(&settle)[0]
    }

    fn take_expired(&mut self, subject: u128, now: Nanos) -> usize {
        let charge = charge(&self.rule, &self.limit, subject);
        self.ledger.take_expired(&charge, now).len()
    }
}

fn charge<'a>(rule: &'a RuleName, limit: &'a Limit, subject: u128) -> Charge<'a> {
    Charge {
        subject: Fingerprint::new(subject),
        rule,
        rate: 0,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    }
}

#[test]
fn entries_past_their_settle_deadline_make_room() {
    let mut fixture = LedgerFixture::new(3);
    for subject in 0..3 {
        assert!(fixture.reserve(subject, subject, START, TTL));
    }
    assert!(!fixture.reserve(7, 7, at(19), TTL));
    assert!(fixture.reserve(7, 7, at(20), TTL), "twice as long as it lasted");
    assert_eq!(fixture.ledger.len(), 1);
}

/// One user filled the whole table, and all other users got an error.
#[test]
fn one_subject_takes_at_most_a_quarter_and_many_greedy_subjects_leave_room() {
    let mut fixture = LedgerFixture::new(40_000);
    let take_all = |fixture: &mut LedgerFixture, subject| {
        let has_room = |id: &u128| fixture.reserve(subject, *id, START, TTL);
        (0..40_000).take_while(has_room).count()
    };
    assert_eq!(take_all(&mut fixture, 1), 10_000);
    for subject in 2..500 {
        assert!(take_all(&mut fixture, subject) >= MIN_PER_COUNTER, "{subject}");
    }
    assert!(fixture.ledger.len() <= 35_000, "{} of 40,000", fixture.ledger.len());
    assert_eq!(fixture.check_room(1), Err(LedgerFullError::Subject { open: 10_000 }));
    for newcomer in 1_000..1_600 {
        assert_eq!(take_all(&mut fixture, newcomer), MIN_PER_COUNTER, "{newcomer}");
    }
}

/// Each call walked all open reservations of its counter, and a full table at a time. Constants bound the entries that
/// a call may touch, and the entries left show how many it touched.
#[test]
fn a_call_evicts_and_refunds_a_bounded_number() {
    let mut fixture = LedgerFixture::new(64_000);
    for (subject, count) in [(1, 16_000), (2, 10_000), (3, 7_000)] {
        for id in 0..count {
            assert!(fixture.reserve(subject, id, START, TTL));
        }
    }
    assert_eq!(fixture.take_expired(1, at(9)), 0, "none has expired");
    assert_eq!(fixture.take_expired(1, at(10)), MAX_REFUNDED);
    assert_eq!(fixture.take_expired(1, at(10)), MAX_REFUNDED, "the next ones");
    assert_eq!(fixture.ledger.len(), 33_000, "they may still be settled");
    assert!(fixture.reserve(4, 0, at(20), TTL));
    assert_eq!(fixture.ledger.len(), 33_000 - MAX_EVICTED);
    let mut refunded = 0;
    while let many @ 1.. = fixture.take_expired(2, at(20)) {
        assert!(many <= MAX_REFUNDED);
        refunded += many;
    }
    assert!((9_999 - MAX_EVICTED..=10_000).contains(&refunded), "{refunded}");
}

#[test]
fn an_estimate_is_refunded_once_and_settled_once() {
    let mut fixture = LedgerFixture::new(100);
    let known = || Used::Known([3].into_iter().collect());
    for id in 0..3 {
        fixture.reserve(1, id, START, TTL);
    }
    assert_eq!(fixture.settle(1, 0, START, known()), ReservationState::Open(START));
    assert_eq!(fixture.settle(1, 0, START, known()), ReservationState::Unknown);
    assert_eq!(fixture.settle(1, 1, START, Used::Unknown), ReservationState::Open(START));
    assert_eq!(fixture.settle(1, 1, START, Used::Unknown), ReservationState::Unknown);
    assert_eq!(fixture.take_expired(1, at(10)), 1, "only the third");
    assert_eq!(fixture.settle(1, 1, START, known()), ReservationState::Refunded);
    assert_eq!(fixture.settle(1, 2, START, known()), ReservationState::Refunded);
    assert!(fixture.ledger.is_empty());
}

#[test]
fn a_reset_removes_all_of_a_counter_and_nothing_else() {
    let mut fixture = LedgerFixture::new(100);
    for id in 0..5 {
        fixture.reserve(1, id, START, TTL);
        fixture.reserve(2, id, START, TTL);
    }
    let counter = charge(&fixture.rule, &fixture.limit, 1).counter();
    fixture.ledger.remove_counter(counter);
    assert_eq!(fixture.ledger.len(), 5);
    fixture.reserve(1, 0, at(1), TTL);
    fixture.ledger.evict_expired(100, at(20));
    assert_eq!(fixture.ledger.len(), 1, "the one after the reset stays");
}
