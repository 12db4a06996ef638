//! Room, fairness, and what a step costs.

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

/// One charge of one subject, and a ledger to enter it in.
struct LedgerBench {
    ledger: ReservationLedger,
    limit: Limit,
    rule: RuleName,
}

impl LedgerBench {
    fn new(max: usize) -> Self {
        let spec = Spec::new(Algorithm::FixedWindow, 10, TTL);
        LedgerBench {
            ledger: ReservationLedger::new(max),
            limit: Limit::compile(&spec, Precision::Memory).expect("a limit"),
            rule: RuleName::new("tokens"),
        }
    }

    /// Reserves for a subject, as a store does. Whether there was room.
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
        let (id, lasts) = (0, TTL);
        self.ledger.make_room(
            &Reserve {
                id,
                ttl: lasts,
                set,
            },
            START,
        )
    }

    fn settle(&mut self, subject: u128, id: u128, charged: Nanos, used: Used) -> ReservationState {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let until = charged.plus(TTL);
        let settle = Settle {
            id,
            charged_at: charged,
            expires_at: until,
            set,
            used,
        };
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
fn those_that_can_be_forgotten_make_room() {
    let mut bench = LedgerBench::new(3);
    for subject in 0..3 {
        assert!(bench.reserve(subject, subject, START, TTL));
    }
    assert!(!bench.reserve(7, 7, at(19), TTL));
    assert!(
        bench.reserve(7, 7, at(20), TTL),
        "twice as long as it lasted"
    );
    assert_eq!(bench.ledger.len(), 1);
}

/// One user filled the whole table, and everybody else got an error.
#[test]
fn one_subject_takes_a_quarter_and_many_that_take_all_they_can_leave_a_quarter() {
    let mut bench = LedgerBench::new(40_000);
    let take_all = |bench: &mut LedgerBench, subject| {
        let has_room = |id: &u128| bench.reserve(subject, *id, START, TTL);
        (0..40_000).take_while(has_room).count()
    };
    assert_eq!(take_all(&mut bench, 1), 10_000);
    for subject in 2..500 {
        assert!(
            take_all(&mut bench, subject) >= MIN_PER_COUNTER,
            "{subject}"
        );
    }
    assert!(
        bench.ledger.len() <= 35_000,
        "{} of 40,000",
        bench.ledger.len()
    );
    assert_eq!(
        bench.check_room(1),
        Err(LedgerFullError::Subject { open: 10_000 })
    );
    for newcomer in 1_000..1_600 {
        assert_eq!(
            take_all(&mut bench, newcomer),
            MIN_PER_COUNTER,
            "{newcomer}"
        );
    }
}

/// Each call walked all that its counter had open, and a full table at a time. What a call may touch is
/// bounded by constants, and what it touched shows in what is left.
#[test]
fn a_call_forgets_and_refunds_a_bounded_number() {
    let mut bench = LedgerBench::new(64_000);
    for (subject, count) in [(1, 16_000), (2, 10_000), (3, 7_000)] {
        for id in 0..count {
            assert!(bench.reserve(subject, id, START, TTL));
        }
    }
    assert_eq!(bench.take_expired(1, at(9)), 0, "none has ended");
    assert_eq!(bench.take_expired(1, at(10)), MAX_REFUNDED);
    assert_eq!(bench.take_expired(1, at(10)), MAX_REFUNDED, "the next ones");
    assert_eq!(bench.ledger.len(), 33_000, "they may be settled yet");
    assert!(bench.reserve(4, 0, at(20), TTL));
    assert_eq!(bench.ledger.len(), 33_000 - MAX_EVICTED);
    let mut refunded = 0;
    while let many @ 1.. = bench.take_expired(2, at(20)) {
        assert!(many <= MAX_REFUNDED);
        refunded += many;
    }
    assert!(
        (9_999 - MAX_EVICTED..=10_000).contains(&refunded),
        "{refunded}"
    );
}

#[test]
fn an_estimate_comes_back_once_and_is_settled_once() {
    let mut bench = LedgerBench::new(100);
    let known = || Used::Known([3].into_iter().collect());
    for id in 0..3 {
        bench.reserve(1, id, START, TTL);
    }
    assert_eq!(
        bench.settle(1, 0, START, known()),
        ReservationState::Open(START)
    );
    assert_eq!(
        bench.settle(1, 0, START, known()),
        ReservationState::Unknown
    );
    assert_eq!(
        bench.settle(1, 1, START, Used::Unknown),
        ReservationState::Open(START)
    );
    assert_eq!(
        bench.settle(1, 1, START, Used::Unknown),
        ReservationState::Unknown
    );
    assert_eq!(bench.take_expired(1, at(10)), 1, "the third alone");
    assert_eq!(
        bench.settle(1, 1, START, known()),
        ReservationState::Returned
    );
    assert_eq!(
        bench.settle(1, 2, START, known()),
        ReservationState::Returned
    );
    assert!(bench.ledger.is_empty());
}

#[test]
fn a_reset_forgets_all_of_a_counter_and_nothing_else() {
    let mut bench = LedgerBench::new(100);
    for id in 0..5 {
        bench.reserve(1, id, START, TTL);
        bench.reserve(2, id, START, TTL);
    }
    let counter = charge(&bench.rule, &bench.limit, 1).counter();
    bench.ledger.remove_counter(counter);
    assert_eq!(bench.ledger.len(), 5);
    bench.reserve(1, 0, at(1), TTL);
    bench.ledger.evict_expired(100, at(20));
    assert_eq!(bench.ledger.len(), 1, "that of after the reset stays");
}
