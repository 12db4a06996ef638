//! Reservations: each is a member of a sorted set (a ledger) beside the record it was charged to, so that any node
//! can settle it. The next reservation refunds the estimates that expired unsettled.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeIntent, Outcome, Reservations, Reserve, Settle, Settled, StoreResult, Used};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use super::plan::{ScriptPlan, key};
use super::script_reply::{ScriptReply, ScriptReplyError};
use super::{RedisStore, rejected, scripts};

impl Reservations for RedisStore {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let (script, set) = (scripts::RESERVE, &reserve.set);
        self.require_heartbeat(script)?;
        let id = reserve.id.to_be_bytes();
        let ttl = micros(reserve.ttl);
        let since = micros(self.server_state.data_since());
        let after = [&id[..], ttl.as_bytes(), since.as_bytes()];
        self.run_decision(script, set, ChargeIntent::Charge, &ledgers(&set.charges), &after).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let script = scripts::SETTLE;
        self.require_heartbeat(script)?;
        // A loss of data loses the mark of an earlier settlement, too.
        if settle.charged_at < self.server_state.data_since() {
            return Ok(settle.outcome(&[], self.server_state.last_seen()));
        }
        let id = settle.id.to_be_bytes();
        let (charged, ttl) = (micros(settle.charged_at), micros(settle.ttl()));
        let used = encode_used(settle);
        let after = [&id[..], charged.as_bytes(), ttl.as_bytes(), &used];
        let done = |at, result| {
            self.server_state.acknowledged.lock().note_refund(at);
            Ok(result)
        };
        let read = |_: &ScriptPlan, reply: ScriptReply| match reply.verdict() {
            Ok(1) => done(reply.at, Settled::Done),
            Ok(2) => done(reply.at, Settled::Late),
            Ok(0) => Ok(settle.outcome(&[], reply.at)),
            Ok(-1) => Ok(Settled::Lapsed),
            _ => Err(rejected(script, ScriptReplyError::Shape)),
        };
        let (charges, ledgers) = (&settle.set.charges, ledgers(&settle.set.charges));
        self.run(script, charges, ChargeIntent::Charge, &ledgers, &after, read).await
    }
}

/// The keys of the ledgers: one for each record, in the order of a plan's records.
pub(super) fn ledgers(charges: &[Charge<'_>]) -> Vec<Vec<u8>> {
    keys_beside_records(charges, "e:")
}

/// One key with the infix `sort` for each record, in the order of a plan's records.
pub(super) fn keys_beside_records(charges: &[Charge<'_>], sort: &str) -> Vec<Vec<u8>> {
    let mut owners: SmallVec<[(Fingerprint, &RuleName); 2]> = SmallVec::new();
    for charge in charges {
        let owner = (charge.subject, charge.rule);
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    let beside = |(subject, rule): (Fingerprint, &RuleName)| key(subject, sort, rule.as_str());
    owners.into_iter().map(beside).collect()
}

/// The units used of each charge, capped at what a counter can hold; empty if they are unknown.
fn encode_used(settle: &Settle<'_>) -> Vec<u8> {
    let Used::Known(used) = &settle.used else {
        return Vec::new();
    };
    let each = settle.set.charges.iter().enumerate().map(|(at, charge)| {
        let estimate = charge.cost.get();
        let max_units = charge.limit.capacity().saturating_mul(2);
        let used = used.get(at).copied().unwrap_or(estimate);
        used.min(estimate.saturating_add(max_units)) as f64
    });
    each.flat_map(f64::to_le_bytes).collect()
}

/// Whole microseconds, rounded up.
pub(super) fn micros(time: Nanos) -> String {
    time.get().div_ceil(1_000).to_string()
}
