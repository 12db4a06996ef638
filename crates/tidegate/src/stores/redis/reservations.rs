//! Estimates that wait to be settled: each is a member of a sorted set beside the record it was charged
//! to, so that any node may settle it and the next reservation brings back what nobody settled.

use smallvec::SmallVec;
use tidegate_core::store::{Charge, Outcome, Reserve, Settle, Settled, StoreError, Used};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use super::books::Intent;
use super::plan::{Plan, Spending, key};
use super::port::decided;
use super::reply::{Nonsense, Reply};
use super::{RedisStore, refused, scripts};

type Answer<T> = Result<T, StoreError>;

impl RedisStore {
    pub(super) async fn reserve_in_ledgers(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let (script, set) = (scripts::RESERVE, &reserve.set);
        self.require_met(script)?;
        let id = reserve.id.to_be_bytes();
        let lasts = micros(reserve.lasts);
        let since = micros(self.memo.data_since());
        let after = [&id[..], lasts.as_bytes(), since.as_bytes()];
        let read = |plan: &Plan, reply| decided(script, set, plan, &reply, Intent::Charge);
        let (charges, ledgers) = (&set.charges, ledgers(&set.charges));
        self.run(script, charges, Spending::Charge, &ledgers, &after, read)
            .await
    }

    pub(super) async fn settle_in_ledgers(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let script = scripts::SETTLE;
        self.require_met(script)?;
        // Whether it was settled before went with the data.
        if settle.charged < self.memo.data_since() {
            return Ok(settle.outcome(&[], self.memo.last_seen()));
        }
        let id = settle.id.to_be_bytes();
        let (charged, lasts) = (micros(settle.charged), micros(settle.lasts()));
        let used = used(settle);
        let after = [&id[..], charged.as_bytes(), lasts.as_bytes(), &used];
        let done = |at, result| {
            self.memo.acknowledged.lock().note_refund(at);
            Ok(result)
        };
        let read = |_: &Plan, reply: Reply| match reply.verdict() {
            Ok(1) => done(reply.at, Settled::Done),
            Ok(2) => done(reply.at, Settled::Late),
            Ok(0) => Ok(settle.outcome(&[], reply.at)),
            Ok(-1) => Ok(Settled::Lapsed),
            _ => Err(refused(script, Nonsense::Shape)),
        };
        let (charges, ledgers) = (&settle.set.charges, ledgers(&settle.set.charges));
        self.run(script, charges, Spending::Charge, &ledgers, &after, read)
            .await
    }
}

/// One ledger for each record, in the order of a plan's records.
pub(super) fn ledgers(charges: &[Charge<'_>]) -> Vec<Vec<u8>> {
    beside_records(charges, "e:")
}

/// A key of this sort for each record, in the order of a plan's records.
pub(super) fn beside_records(charges: &[Charge<'_>], sort: &str) -> Vec<Vec<u8>> {
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

/// What was used of each charge, no more of it than a counter ever keeps; nothing if nobody said.
fn used(settle: &Settle<'_>) -> Vec<u8> {
    let Used::Known(used) = &settle.used else {
        return Vec::new();
    };
    let each = settle.set.charges.iter().enumerate().map(|(at, charge)| {
        let estimate = charge.cost.get();
        let kept = charge.limit.capacity().saturating_mul(2);
        let used = used.get(at).copied().unwrap_or(estimate);
        used.min(estimate.saturating_add(kept)) as f64
    });
    each.flat_map(f64::to_le_bytes).collect()
}

fn micros(time: Nanos) -> String {
    time.get().div_ceil(1_000).to_string()
}
