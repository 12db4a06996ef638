//! Decides a charge: exactly while the shard is trusted, otherwise without it.
//!
//! One charge takes one of four ways. The reply is in time: it decides, and if it denies, credits may pay. The reply is
//! late: the newest state decides (`Source::Late`) and the reply is awaited. No time or no room is left for a call: the
//! newest state decides and the units are pending at once. The shard is not trusted, the breaker is open, the call
//! fails, or the counter has units to write back: this node's share decides (`Source::Fallback`).
//!
//! Bounds: without the store all nodes together admit at most the share of each limit. Where an outage begins or
//! ends, a window may hold exactly admitted units as well. The share decides for a counter with pending units until
//! the store has charged them.

use std::sync::Arc;

use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{
    ChargeIntent, ChargeSet, Degraded, Epoch, Outcome, Probe, Source, Store, StoreError, StoreResult,
};
use tidegate_core::units::Nanos;

use crate::owned_charge::{OwnedCharge, OwnedSet};
use crate::runtime::{Runtime, random_id, within};
use crate::shard::call::{SentCharge, StoreCallError};
use crate::shard::late::{LateId, Payment, Payments};
use crate::shard::late_calls::OutstandingRequest;
use crate::shard::refund::{ChargeKind, Readings, readings_before, refund_of, settle_as_unused};
use crate::shard::shared_shard::{RequestStamp, ShardState, SharedShard};

/// A decision, and what is outstanding of it.
pub(crate) struct ShardDecision {
    pub(crate) outcome: Outcome,
    late: LateTicket,
}

enum LateTicket {
    None,
    /// The reply is outstanding.
    Outstanding(LateId),
    /// No reply will change it: the request was not sent, or the store denied it and credits paid. How its charges were
    /// paid for.
    Paid(Payments),
}

impl From<Outcome> for ShardDecision {
    fn from(outcome: Outcome) -> Self {
        ShardDecision { outcome, late: LateTicket::None }
    }
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Charges a set. Decides without the store if the reply is not in time or cannot be by `until`.
    pub(crate) async fn charge(self: &Arc<Self>, until: Nanos, set: &ChargeSet<'_>, kind: ChargeKind) -> ShardDecision {
        if self.bypasses_store(set) {
            return self.decide_locally(set, kind).into();
        }
        let decided = self.charge_remotely(until, &[set], kind).await.pop();
        decided.unwrap_or_else(|| self.decide_locally(set, kind).into())
    }

    /// Charges sets, each independently. Those that need the store are charged in one call.
    pub(crate) async fn charge_batch(self: &Arc<Self>, sets: &[&ChargeSet<'_>]) -> Vec<Outcome> {
        let kind = ChargeKind::Charge;
        let remote: Vec<usize> = (0..sets.len()).filter(|i| !self.bypasses_store(sets[*i])).collect();
        let sent: Vec<&ChargeSet<'_>> = remote.iter().map(|i| sets[*i]).collect();
        let mut outcomes: Vec<Option<Outcome>> = sets.iter().map(|_| None).collect();
        if !sent.is_empty() {
            let decided = self.charge_remotely(Nanos::MAX, &sent, kind).await;
            for (i, decided) in remote.into_iter().zip(decided) {
                outcomes[i] = Some(decided.outcome);
            }
        }
        let decided = outcomes.into_iter().zip(sets);
        decided.map(|(outcome, set)| outcome.unwrap_or_else(|| self.decide_locally(set, kind))).collect()
    }

    async fn charge_remotely(
        self: &Arc<Self>,
        until: Nanos,
        sets: &[&ChargeSet<'_>],
        kind: ChargeKind,
    ) -> Vec<ShardDecision> {
        let (mut sent, remains) = match self.send_charges(until, sets, kind) {
            Ok(sent) => sent,
            Err(StoreCallError::BulkheadFull | StoreCallError::NoTime) if self.is_trusted() => {
                return sets.iter().map(|set| self.decide_unsent(set, kind)).collect();
            }
            Err(_) => return sets.iter().map(|set| self.decide_locally(set, kind).into()).collect(),
        };
        let Some(replies) = within(&self.runtime, remains, sent.charging.as_mut()).await else {
            self.calls.check_silence(self.runtime.now());
            return self.decide_late(sets, sent, kind);
        };
        self.report_all(sent.call, sets, &replies);
        let mut replies = replies.into_iter();
        sets.iter().map(|set| self.decide_in_time(set, replies.next(), sent.stamp, kind)).collect()
    }

    /// The reply is in time: it decides, and if it denies, credits may pay.
    fn decide_in_time(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        reply: Option<StoreResult<Outcome>>,
        sent: RequestStamp,
        kind: ChargeKind,
    ) -> ShardDecision {
        let was_sent = reply.as_ref().is_some_and(was_sent);
        let outcome = reply.and_then(Result::ok);
        let Some(mut outcome) = outcome.filter(|outcome| self.trusts_reply(set, outcome, sent)) else {
            if was_sent {
                self.report_unconfirmed(set);
            }
            return self.decide_locally(set, kind).into();
        };
        if outcome.degraded == Some(Degraded::NotDurable)
            && let Some(denial) = set.denial_if_not_durable()
        {
            // It stays charged, and the request is denied.
            self.report_unconfirmed(set);
            (outcome.admitted, outcome.degraded) = (false, Some(denial));
            return outcome.into();
        }
        if !outcome.admitted
            && kind == ChargeKind::Charge
            && let Some(payments) = self.pay_by_credits(set)
        {
            (outcome.admitted, outcome.source) = (true, Source::Late);
            for (payment, reading) in payments.iter().zip(&mut outcome.readings) {
                if *payment != Payment::None && !reading.verdict.allows() {
                    reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                }
            }
            return ShardDecision { outcome, late: LateTicket::Paid(payments) };
        }
        outcome.into()
    }

    /// The replies are late: the newest states decide, and a task awaits the replies.
    fn decide_late(
        self: &Arc<Self>,
        sets: &[&ChargeSet<'_>],
        sent: SentCharge,
        kind: ChargeKind,
    ) -> Vec<ShardDecision> {
        let trusted = self.state() == ShardState::Exact;
        let mut requests = Vec::with_capacity(sets.len());
        let decided = sets.iter().map(|set| {
            let unpaid = || set.charges.iter().map(|_| Payment::None).collect();
            let (mut decided, payments): (ShardDecision, _) = match kind {
                _ if !trusted => (self.decide_locally(set, kind).into(), unpaid()),
                ChargeKind::Charge => {
                    let (outcome, payments) = self.decide_by_newest(set, ChargeIntent::Charge);
                    (outcome.into(), payments)
                }
                // It may be settled before the reply arrives: this node holds it, and what the store reserves is
                // settled with zero used.
                ChargeKind::Reserve { .. } => (self.decide_unsent(set, kind), unpaid()),
            };
            self.report_unconfirmed(set);
            let (charges, at) = (set.charges.iter().map(OwnedCharge::of), decided.outcome.at);
            let id = self.node_state.late.update(|ledger| ledger.insert_request(charges, payments, at));
            requests.push(OutstandingRequest { id, set: OwnedSet::of(set) });
            if trusted && kind == ChargeKind::Charge {
                decided.late = LateTicket::Outstanding(id);
            }
            decided
        });
        let decided = decided.collect();
        self.await_late(sent, requests, kind);
        decided
    }

    /// No time or no room is left for a call: decides as if the reply were late. The units are pending at once.
    fn decide_unsent(self: &Arc<Self>, set: &ChargeSet<'_>, kind: ChargeKind) -> ShardDecision {
        let (outcome, payments) = self.decide_by_newest(set, ChargeIntent::Charge);
        if outcome.admitted {
            self.write_back_unsent(set, &payments);
            self.reserve_here(set, &outcome, kind);
        }
        ShardDecision { outcome, late: LateTicket::Paid(payments) }
    }

    /// What `charge` would return.
    pub(crate) async fn peek(self: &Arc<Self>, until: Nanos, set: &ChargeSet<'_>) -> Outcome {
        if !self.bypasses_store(set) {
            let sent = self.sent_now();
            let (until, budget) = (self.deadline_of(until, &[set]), self.settings.budget);
            match self.call(until, budget, |store| store.peek(set)).await {
                Ok(outcome) if self.lacks_nothing(set, &outcome, sent) => return outcome,
                Err(_) if self.state() == ShardState::Exact => {
                    return self.decide_by_newest(set, ChargeIntent::Peek).0;
                }
                Ok(_) | Err(_) => {}
            }
        }
        self.decide_by_share(set, ChargeIntent::Peek)
    }

    /// Refunds a charge wherever it was made, because another shard denied the request. Returns the readings as they
    /// were before it.
    pub(crate) fn refund_decided(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        decided: ShardDecision,
        epoch: Option<Epoch>,
        kind: ChargeKind,
    ) -> Readings {
        let ShardDecision { outcome, late } = decided;
        let (node_state, now) = (&self.node_state, self.store_time());
        match (outcome.source, late) {
            (Source::Late, LateTicket::Outstanding(id)) => {
                let local_now = self.runtime.now();
                if !node_state.late.update(|ledger| ledger.withdraw(id, (local_now, now))) {
                    self.refund_in_background(set, outcome, epoch, kind);
                }
            }
            (Source::Late, LateTicket::Paid(payments)) => {
                self.close_reservation(set, &outcome, kind);
                for (charge, payment) in set.charges.iter().map(OwnedCharge::of).zip(payments) {
                    match payment {
                        Payment::None => {}
                        Payment::Share => {
                            node_state.write_back.cancel(&charge, now);
                        }
                        Payment::Credit { charged } => self.refund_units(charge, charged, epoch),
                    }
                }
            }
            (Source::Fallback, _) => {
                self.close_reservation(set, &outcome, kind);
                let refund = refund_of(random_id(&self.runtime), set.clone(), &outcome);
                node_state.refund_to_share(&refund, &self.membership.load(), now);
                return self.decide_by_share(set, ChargeIntent::Peek).readings;
            }
            _ => {
                let readings = readings_before(set, &outcome);
                self.refund_in_background(set, outcome, epoch, kind);
                return readings;
            }
        }
        self.decide_by_newest(set, ChargeIntent::Peek).0.readings
    }

    /// Closes a reservation that only this node holds, and of which nothing was used.
    fn close_reservation(&self, set: &ChargeSet<'_>, outcome: &Outcome, kind: ChargeKind) {
        if let ChargeKind::Reserve { id, ttl } = kind {
            self.node_state.reservations.close(&settle_as_unused(id, ttl, set.clone(), outcome));
        }
    }

    /// Decides by this node's shares, which count unconfirmed units.
    pub(crate) fn decide_locally(self: &Arc<Self>, set: &ChargeSet<'_>, kind: ChargeKind) -> Outcome {
        self.count_unconfirmed(set);
        let outcome = self.decide_by_share(set, ChargeIntent::Charge);
        if outcome.admitted {
            self.schedule_push(self.settings.push_delay);
            self.reserve_here(set, &outcome, kind);
        }
        outcome
    }
}

/// Whether the store may have executed the call. A call that was rejected at once was not sent: a flood of those
/// must not be recorded.
pub(crate) fn was_sent<T>(reply: &StoreResult<T>) -> bool {
    match reply {
        Ok(_) | Err(StoreError::Rejected { .. }) => true,
        Err(StoreError::Unavailable { waited, .. }) => *waited > Nanos::ZERO,
    }
}
