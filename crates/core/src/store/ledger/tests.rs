//! Room, fairness, and what a step costs.

use std::borrow::Cow;

use super::*;
use crate::algorithms::{Algorithm, Limit, Precision, Spec};
use crate::store::{ChargeSet, Role, Terms};
use crate::subject::{Fingerprint, RuleName};

const START: Nanos = Nanos::from_secs(1_000);
const LASTS: Nanos = Nanos::from_secs(10);

fn at(secs: u64) -> Nanos {
    START.plus(Nanos::from_secs(secs))
}

/// One charge of one subject, and a ledger to enter it in.
struct Bench {
    ledger: Ledger,
    limit: Limit,
    rule: RuleName,
}

impl Bench {
    fn new(max: usize) -> Self {
        let spec = Spec::new(Algorithm::FixedWindow, 10, LASTS);
        Bench {
            ledger: Ledger::new(max),
            limit: Limit::compile(&spec, Precision::Memory).expect("a limit"),
            rule: RuleName::new("tokens"),
        }
    }

    /// Reserves for a subject, as a store does. Whether there was room.
    fn reserve(&mut self, subject: u128, id: u128, now: Nanos, lasts: Nanos) -> bool {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let reserve = Reserve { id, lasts, set };
        let room = self.ledger.make_room(&reserve, now).is_ok();
        if room {
            self.ledger.enter(&reserve, &reserve.set.charges[0], now);
        }
        room
    }

    fn room(&mut self, subject: u128) -> Result<(), LedgerFull> {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let (id, lasts) = (0, LASTS);
        self.ledger.make_room(&Reserve { id, lasts, set }, START)
    }

    fn settle(&mut self, subject: u128, id: u128, charged: Nanos, used: Used) -> Kept {
        let set = ChargeSet::of_one(charge(&self.rule, &self.limit, subject));
        let until = charged.plus(LASTS);
        let settle = Settle {
            id,
            charged,
            until,
            set,
            used,
        };
        self.ledger.close(&settle)[0]
    }

    fn abandoned(&mut self, subject: u128, now: Nanos) -> usize {
        let charge = charge(&self.rule, &self.limit, subject);
        self.ledger.abandoned(&charge, now).len()
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
        terms: &Terms::USUAL,
    }
}

#[test]
fn those_that_can_be_forgotten_make_room() {
    let mut bench = Bench::new(3);
    for subject in 0..3 {
        assert!(bench.reserve(subject, subject, START, LASTS));
    }
    assert!(!bench.reserve(7, 7, at(19), LASTS));
    assert!(
        bench.reserve(7, 7, at(20), LASTS),
        "twice as long as it lasted"
    );
    assert_eq!(bench.ledger.len(), 1);
}

/// One user filled the whole table, and everybody else got an error.
#[test]
fn one_subject_takes_a_quarter_and_many_that_take_all_they_can_leave_a_quarter() {
    let mut bench = Bench::new(40_000);
    let take_all = |bench: &mut Bench, subject| {
        let granted = |id: &u128| bench.reserve(subject, *id, START, LASTS);
        (0..40_000).take_while(granted).count()
    };
    assert_eq!(take_all(&mut bench, 1), 10_000);
    for subject in 2..500 {
        assert!(take_all(&mut bench, subject) >= FEW, "{subject}");
    }
    assert!(
        bench.ledger.len() <= 35_000,
        "{} of 40,000",
        bench.ledger.len()
    );
    assert_eq!(bench.room(1), Err(LedgerFull::Subject { open: 10_000 }));
    for newcomer in 1_000..1_600 {
        assert_eq!(take_all(&mut bench, newcomer), FEW, "{newcomer}");
    }
}

/// Each call walked all that its counter had open, and a full table at a time. What a call may touch is
/// bounded by constants, and what it touched shows in what is left.
#[test]
fn a_call_forgets_and_refunds_a_bounded_number() {
    let mut bench = Bench::new(64_000);
    for (subject, takes) in [(1, 16_000), (2, 10_000), (3, 7_000)] {
        for id in 0..takes {
            assert!(bench.reserve(subject, id, START, LASTS));
        }
    }
    assert_eq!(bench.abandoned(1, at(9)), 0, "none has ended");
    assert_eq!(bench.abandoned(1, at(10)), MAX_REFUNDED);
    assert_eq!(bench.abandoned(1, at(10)), MAX_REFUNDED, "the next ones");
    assert_eq!(bench.ledger.len(), 33_000, "they may be settled yet");
    assert!(bench.reserve(4, 0, at(20), LASTS));
    assert_eq!(bench.ledger.len(), 33_000 - MAX_FORGOTTEN);
    let mut refunded = 0;
    while let many @ 1.. = bench.abandoned(2, at(20)) {
        assert!(many <= MAX_REFUNDED);
        refunded += many;
    }
    assert!(
        (9_999 - MAX_FORGOTTEN..=10_000).contains(&refunded),
        "{refunded}"
    );
}

#[test]
fn an_estimate_comes_back_once_and_is_settled_once() {
    let mut bench = Bench::new(100);
    let known = || Used::Known([3].into_iter().collect());
    for id in 0..3 {
        bench.reserve(1, id, START, LASTS);
    }
    assert_eq!(bench.settle(1, 0, START, known()), Kept::Open(START));
    assert_eq!(bench.settle(1, 0, START, known()), Kept::Nothing);
    assert_eq!(bench.settle(1, 1, START, Used::Unsaid), Kept::Open(START));
    assert_eq!(bench.settle(1, 1, START, Used::Unsaid), Kept::Nothing);
    assert_eq!(bench.abandoned(1, at(10)), 1, "the third alone");
    assert_eq!(bench.settle(1, 1, START, known()), Kept::Back);
    assert_eq!(bench.settle(1, 2, START, known()), Kept::Back);
    assert!(bench.ledger.is_empty());
}

#[test]
fn a_reset_forgets_all_of_a_counter_and_nothing_else() {
    let mut bench = Bench::new(100);
    for id in 0..5 {
        bench.reserve(1, id, START, LASTS);
        bench.reserve(2, id, START, LASTS);
    }
    let counter = charge(&bench.rule, &bench.limit, 1).counter();
    bench.ledger.forget(counter);
    assert_eq!(bench.ledger.len(), 5);
    bench.reserve(1, 0, at(1), LASTS);
    bench.ledger.forget_ended(100, at(20));
    assert_eq!(bench.ledger.len(), 1, "that of after the reset stays");
}
