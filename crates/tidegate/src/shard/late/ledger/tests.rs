use std::borrow::Cow;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Cost;

use super::*;

const SENT: Nanos = Nanos::from_secs(1_000);

/// A ledger and the pending units of its one counter, as the write-back queue would hold them.
#[derive(Default)]
struct LateLedgerHarness {
    ledger: LateLedger,
    pending: u64,
    refunded: u64,
    at: Nanos,
}

fn charge(subject: u128, units: u64) -> OwnedCharge {
    let rule = RuleName::new("late");
    let spec = Spec::new(Algorithm::FixedWindow, 100, Nanos::from_secs(10));
    let limit = Limit::compile(&spec, Precision::Memory).unwrap();
    OwnedCharge::of(&Charge {
        subject: Fingerprint::new(subject),
        rule: &rule,
        rate: 0,
        limit: Cow::Borrowed(&limit),
        cost: Cost::new(units).unwrap(),
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    })
}

fn claim(subject: u128, units: u64, room: u64) -> Claim {
    Claim { counter: charge(subject, units).counter(), units, room, role: Role::Enforce }
}

/// Pays for a late request if it can be admitted. One that cannot keeps nothing.
fn pay(ledger: &mut LateLedger, claims: &[Claim], at: Nanos) -> Option<Payments> {
    let any = charge(1, 1);
    let set = ChargeSet::of(claims.iter().map(|claim| Charge { role: claim.role, ..any.charge() }));
    let payments = ledger.affordable_payments(claims, at);
    let admitted = set.admits(|i| payments[i] != Payment::None);
    if admitted {
        ledger.pay(claims, &payments, at);
    }
    admitted.then_some(payments)
}

impl LateLedgerHarness {
    fn new() -> Self {
        LateLedgerHarness { at: SENT, ..LateLedgerHarness::default() }
    }

    fn counter(&self) -> u128 {
        charge(1, 1).counter()
    }

    /// The budget of a request has passed. What the node may have unconfirmed is `share`.
    fn late(&mut self, units: u64, share: u64) -> (bool, LateId) {
        let room = share.saturating_sub(self.pending);
        let paid = pay(&mut self.ledger, &[claim(1, units, room)], self.at);
        let admitted = paid.is_some();
        let payments = paid.unwrap_or_else(|| [Payment::None].into_iter().collect());
        let id = self.ledger.insert_request([charge(1, units)], payments, self.at);
        (admitted, id)
    }

    fn replied(&mut self, id: LateId, result: LateChargeResult) {
        let pending = &mut self.pending;
        let cancel_pending = |charge: &OwnedCharge| {
            let is_paid = *pending >= charge.units();
            *pending -= if is_paid { charge.units() } else { 0 };
            is_paid
        };
        let effects = self.ledger.replied(id, |_| result, (self.at, self.at), cancel_pending);
        self.run(effects);
    }

    fn run(&mut self, effects: Vec<LateEffect>) {
        for effect in effects {
            match effect {
                LateEffect::WriteBack { charge, .. } => self.pending += charge.units(),
                LateEffect::Refund { charge, .. } => self.refunded += charge.units(),
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        self.at = self.at.plus(Nanos::from_millis(millis));
        let effects = self.ledger.expire([self.counter()], self.at, |_| true);
        self.run(effects);
    }

    fn waiting(&self) -> u64 {
        self.ledger.waiting(self.counter())
    }

    fn credits(&self) -> u64 {
        let account = self.ledger.accounts.get(&self.counter());
        account.and_then(|account| account.credit_units(self.at)).map_or(0, |(units, _)| units)
    }
}

const CHARGED: LateChargeResult = LateChargeResult::Charged(SENT);

#[test]
fn a_node_admits_its_share_and_no_more() {
    let mut harness = LateLedgerHarness::new();
    let admitted = [(); 5].map(|()| harness.late(2, 6).0);
    assert_eq!(admitted, [true, true, true, false, false]);
    assert_eq!(harness.waiting(), 6);
}

#[test]
fn a_late_reply_confirms_the_units_and_charges_nothing_twice() {
    let mut harness = LateLedgerHarness::new();
    let (admitted, id) = harness.late(1, 1);
    assert!(admitted && !harness.late(1, 1).0);
    harness.replied(id, CHARGED);
    assert_eq!((harness.waiting(), harness.pending, harness.credits()), (0, 0, 0));
    assert!(harness.late(1, 1).0, "there is room again");
    assert_eq!(harness.refunded, 0);
}

#[test]
fn units_that_a_late_reply_denies_are_pending_and_take_room() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(1, 1);
    harness.replied(id, LateChargeResult::Denied);
    assert_eq!((harness.waiting(), harness.pending), (0, 1));
    assert!(!harness.late(1, 1).0);
}

#[test]
fn units_of_a_lost_reply_are_pending_if_they_were_admitted() {
    let mut harness = LateLedgerHarness::new();
    let ids = [harness.late(1, 1).1, harness.late(1, 1).1];
    for id in ids {
        harness.replied(id, LateChargeResult::Unknown);
    }
    assert_eq!((harness.pending, harness.credits()), (1, 0));
    assert!(harness.ledger.is_empty());
}

#[test]
fn units_charged_for_a_denied_request_pay_for_the_next_one() {
    let mut harness = LateLedgerHarness::new();
    let (admitted, id) = harness.late(1, 0);
    assert!(!admitted);
    harness.replied(id, CHARGED);
    assert_eq!(harness.credits(), 1);
    let (admitted, next) = harness.late(1, 0);
    assert!(admitted && harness.credits() == 0 && harness.waiting() == 0);
    harness.replied(next, CHARGED);
    assert_eq!(harness.credits(), 1, "its own charge is the next credit");
    assert!(harness.ledger.pay_by_credits(&[claim(1, 1, 0)], SENT).is_some());
    assert_eq!(harness.ledger.pay_by_credits(&[claim(1, 1, 9)], SENT), None, "only once");
    harness.pass(1_000);
    assert_eq!(harness.refunded, 0);
}

#[test]
fn an_unused_credit_is_refunded_once_after_a_while() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(3, 0);
    harness.replied(id, CHARGED);
    harness.pass(249);
    assert_eq!((harness.credits(), harness.refunded), (3, 0));
    assert!(harness.ledger.pay_by_credits(&[claim(1, 1, 0)], SENT).is_some());
    harness.pass(1);
    assert_eq!((harness.credits(), harness.refunded), (0, 2));
    harness.pass(1_000);
    assert_eq!(harness.refunded, 2);
    assert!(harness.ledger.is_empty());
}

/// Each late call looked at the credits of all counters, under the lock that every late decision takes.
#[test]
fn a_request_expires_the_credits_of_its_own_counters_only() {
    let mut ledger = LateLedger::default();
    for subject in 1..=3 {
        let id = ledger.insert_request([charge(subject, 1)], [Payment::None].into_iter().collect(), SENT);
        ledger.replied(id, |_| CHARGED, (SENT, SENT), |_| false);
    }
    let over = SENT.plus(CREDIT_TTL);
    let own = |subject| charge(subject, 1).counter();
    assert_eq!(ledger.expire([own(1), own(9)], over, |_| true).len(), 1);
    assert_eq!([1, 2, 3].map(|subject| ledger.has_late_charges(own(subject))), [false, true, true]);
    // The store that charged it does not hold it any more.
    assert!(ledger.expire([own(2)], over, |_| false).is_empty());
    assert!(!ledger.has_late_charges(own(2)));
    assert!(ledger.expire([own(3)], SENT, |_| true).is_empty());
    assert!(ledger.has_late_charges(own(3)), "it may still pay");
}

/// A window that has ended leaves nothing to the next one.
#[test]
fn a_credit_pays_in_its_own_window_only() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(1, 0);
    harness.at = SENT.plus(Nanos::from_millis(9_900));
    harness.replied(id, LateChargeResult::Charged(harness.at));
    assert_eq!(harness.credits(), 1);
    harness.pass(100);
    assert_eq!(harness.credits(), 0);
    assert!(!harness.late(1, 0).0);
    harness.pass(150);
    assert_eq!(harness.refunded, 1);
}

#[test]
fn credits_and_pending_units_pay_for_each_other() {
    let mut harness = LateLedgerHarness::new();
    let (_, admitted) = harness.late(1, 1);
    let (_, denied) = harness.late(1, 1);
    harness.replied(admitted, LateChargeResult::Denied);
    assert_eq!(harness.pending, 1);
    harness.replied(denied, CHARGED);
    assert_eq!((harness.pending, harness.credits()), (0, 0));
    // And the other way round.
    let (_, admitted) = harness.late(1, 1);
    let (_, denied) = harness.late(1, 1);
    harness.replied(denied, CHARGED);
    harness.replied(admitted, LateChargeResult::Denied);
    assert_eq!((harness.pending, harness.credits()), (0, 0));
    assert!(harness.ledger.is_empty());
}

/// The charge cancelled the pending unit of the next window, and the store never counted that one.
#[test]
fn a_charge_to_a_window_that_has_ended_pays_for_no_pending_unit_of_the_next_one() {
    let mut harness = LateLedgerHarness::new();
    harness.at = SENT.plus(Nanos::from_millis(9_950));
    let charged = harness.at;
    let (_, denied) = harness.late(1, 0);
    harness.pass(100);
    let (_, admitted) = harness.late(1, 1);
    harness.replied(admitted, LateChargeResult::Denied);
    assert_eq!(harness.pending, 1);
    harness.replied(denied, LateChargeResult::Charged(charged));
    assert_eq!(harness.pending, 1);
    assert!(!harness.late(1, 1).0, "nor does it pay as a credit");
}

#[test]
fn a_charge_to_another_window_does_not_confirm() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(1, 1);
    let before = SENT.since(Nanos::from_millis(1));
    harness.replied(id, LateChargeResult::Charged(before));
    assert_eq!((harness.waiting(), harness.pending), (0, 1));
    // In a later window the admission is over, and the charge is a credit.
    let (_, id) = harness.late(1, 2);
    let after = SENT.plus(Nanos::from_secs(10));
    harness.at = after;
    harness.replied(id, LateChargeResult::Charged(after));
    assert_eq!((harness.waiting(), harness.pending, harness.credits()), (0, 1, 1));
}

#[test]
fn every_counter_must_have_room_or_nothing_is_recorded() {
    let mut ledger = LateLedger::default();
    assert_eq!(pay(&mut ledger, &[claim(1, 1, 5), claim(2, 1, 0)], SENT), None);
    assert!(ledger.is_empty());
    assert!(pay(&mut ledger, &[claim(1, 1, 5), claim(2, 1, 1)], SENT).is_some());
    assert_eq!(ledger.waiting(charge(1, 1).counter()), 1);
    // Named twice, a counter needs room for the sum.
    assert_eq!(pay(&mut ledger, &[claim(3, 2, 3), claim(3, 2, 3)], SENT), None);
    assert!(pay(&mut ledger, &[claim(3, 2, 4), claim(3, 2, 4)], SENT).is_some());
}

#[test]
fn one_quota_is_enough_and_a_shadow_limit_denies_nothing() {
    let with = |subject, room, role| Claim { role, ..claim(subject, 1, room) };
    let mut ledger = LateLedger::default();
    let quotas = [with(1, 0, Role::Quota), with(2, 1, Role::Quota)];
    let paid = pay(&mut ledger, &quotas, SENT).unwrap();
    assert_eq!(paid.as_slice(), [Payment::None, Payment::Share]);
    assert_eq!(pay(&mut ledger, &quotas, SENT), None);
    let shadowed = [with(3, 1, Role::Enforce), with(4, 0, Role::Shadow)];
    let paid = pay(&mut ledger, &shadowed, SENT).unwrap();
    assert_eq!(paid.as_slice(), [Payment::Share, Payment::None]);
}

/// Another shard denied the request later.
#[test]
fn a_withdrawn_request_keeps_nothing_and_its_charge_becomes_a_credit() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(1, 1);
    assert!(harness.ledger.withdraw(id, (harness.at, harness.at)));
    assert_eq!(harness.waiting(), 0);
    harness.replied(id, CHARGED);
    assert_eq!((harness.credits(), harness.pending), (1, 0));
    assert!(!harness.ledger.withdraw(id, (harness.at, harness.at)));
}

/// The credits were charged before the request. Refunding them as of the request would refund what has drained since.
#[test]
fn credits_of_a_withdrawn_request_keep_the_time_of_their_charge() {
    let mut harness = LateLedgerHarness::new();
    let (_, first) = harness.late(1, 0);
    harness.replied(first, CHARGED);
    harness.pass(200);
    let (admitted, id) = harness.late(1, 0);
    assert!(admitted && harness.credits() == 0);
    assert!(harness.ledger.withdraw(id, (harness.at, harness.at)));
    harness.replied(id, LateChargeResult::Denied);
    let effects = harness.ledger.expire([harness.counter()], harness.at.plus(CREDIT_TTL), |_| true);
    assert!(matches!(effects.as_slice(), [LateEffect::Refund { charged: SENT, .. }]), "{effects:?}");
}

/// Credits pay for limits that decide. A shadow limit was refunded that had never been charged.
#[test]
fn credits_pay_for_every_limit_that_decides_and_for_no_shadow_limit() {
    let (mut ledger, at) = (LateLedger::default(), SENT.plus(Nanos::from_millis(100)));
    for (subject, earlier) in [(1, 3), (1, 5), (2, 4), (3, 9)] {
        let id = ledger.insert_request([charge(subject, 1)], [Payment::None].into_iter().collect(), SENT);
        let charged = LateChargeResult::Charged(at.since(Nanos::from_millis(earlier)));
        ledger.replied(id, |_| charged, (at, at), |_| false);
    }
    let with = |subject, units, role| Claim { role, ..claim(subject, units, 9) };
    let claims = [with(1, 2, Role::Enforce), with(2, 1, Role::Quota), with(3, 1, Role::Shadow)];
    let paid = ledger.pay_by_credits(&claims, at).unwrap();
    let credit = |earlier| Payment::Credit { charged: at.since(Nanos::from_millis(earlier)) };
    assert_eq!(paid.as_slice(), [credit(5), credit(4), Payment::None]);
    assert_eq!(ledger.pay_by_credits(&[with(3, 1, Role::Shadow)], at), None, "it decides nothing");
    assert_eq!(ledger.pay_by_credits(&[with(3, 1, Role::Quota), with(2, 1, Role::Quota)], at), None);
}

#[test]
fn units_of_an_unsent_request_are_pending_at_once() {
    let mut harness = LateLedgerHarness::new();
    let paid = pay(&mut harness.ledger, &[claim(1, 2, 2)], SENT).unwrap();
    let effects = harness.ledger.never_sent([charge(1, 2)], &paid, SENT);
    harness.run(effects);
    assert_eq!((harness.pending, harness.waiting()), (2, 0));
    assert!(harness.ledger.is_empty());
}

/// When the breaker opens, this node's share counts the waiting units: once.
#[test]
fn the_share_counts_waiting_units_once() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(2, 9);
    harness.late(3, 9);
    let counter = harness.counter();
    assert_eq!(harness.ledger.take_unshared(counter), 5);
    assert_eq!(harness.ledger.take_unshared(counter), 0);
    let cancel_pending = |_: &OwnedCharge| false;
    let effects = harness.ledger.replied(id, |_| LateChargeResult::Denied, (SENT, SENT), cancel_pending);
    let shared = |effect: &LateEffect| matches!(effect, LateEffect::WriteBack { unshared: 0, .. });
    assert!(effects.len() == 1 && effects.iter().all(shared));
    assert_eq!(harness.ledger.take_unshared(counter), 0);
}

#[test]
fn credits_of_a_store_that_lost_its_counts_are_void() {
    let mut harness = LateLedgerHarness::new();
    let (_, id) = harness.late(1, 0);
    harness.replied(id, CHARGED);
    harness.ledger.void_credits(|_| true);
    harness.pass(1_000);
    assert_eq!((harness.credits(), harness.refunded), (0, 0));
}

#[test]
fn a_reset_ends_credits_and_those_of_outstanding_replies() {
    let mut harness = LateLedgerHarness::new();
    let ids = [harness.late(1, 0).1, harness.late(1, 0).1, harness.late(1, 0).1];
    harness.replied(ids[0], CHARGED);
    harness.pass(10);
    harness.ledger.reset(harness.counter(), harness.at);
    assert_eq!(harness.credits(), 0);
    harness.replied(ids[1], CHARGED);
    assert_eq!(harness.credits(), 0, "charged before the reset");
    harness.replied(ids[2], LateChargeResult::Charged(harness.at));
    assert_eq!(harness.credits(), 1);
    harness.pass(1_000);
    assert_eq!(harness.refunded, 1);
    assert!(harness.ledger.is_empty());
}
