//! Implements the store port. Every verb is one script call.

use std::borrow::Cow;
use std::time::Instant;

use redis::Value;
use tidegate_core::store::{
    Charge, ChargeIntent, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits,
    Refund, Refunded, Restore, Source, StoreResult,
};
use tidegate_core::units::{Cost, Nanos};

use super::connection_pool::ScriptCall;
use super::decision_replay::{DecisionReplay, decide, open_replay, snapshot_of};
use super::durable::{self, DurabilityRequirement};
use super::plan::{ScriptPlan, base64url, key};
use super::record;
use super::reply_parts::list;
use super::reservations::{keys_beside_records, ledgers, micros};
use super::script_reply::{ScriptReply, ScriptReplyError, number};
use super::scripts::{self, Script};
use super::{RedisStore, rejected};

/// The infix of permit keys, after the hash tag.
pub(super) const PERMITS: &str = "s:";

impl Counters for RedisStore {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.charge_as(set, ChargeIntent::Charge).await
    }

    /// Sends all sets on one connection, in one pipeline.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let script = scripts::CHARGE;
        let plan = |set: &&ChargeSet<'_>| self.plan(script, &set.charges, ChargeIntent::Charge);
        let plans: StoreResult<Vec<ScriptPlan>> = sets.iter().map(plan).collect();
        let Ok(plans) = plans else {
            // One set cannot be planned.
            return self.charge_one_by_one(sets).await;
        };
        let calls = plans.iter();
        let calls = calls.map(|plan| ScriptCall { script, keys: &plan.keys, arguments: plan.arguments(&[]) });
        let calls: Vec<ScriptCall<'_>> = calls.collect();
        let need = DurabilityRequirement::of(script, sets.iter().flat_map(|set| &set.charges));
        let began = Instant::now();
        let Ok((replies, durability)) = self.transport.call_each(&calls, need).await else {
            // Nothing was sent. Sets that need no durability can be charged.
            return self.charge_one_by_one(sets).await;
        };
        let mut outcomes = Vec::with_capacity(sets.len());
        for ((set, plan), reply) in sets.iter().zip(&plans).zip(replies) {
            outcomes.push(match self.decode_reply(script, &plan.keys, reply, began) {
                Ok(reply) if reply.is_only_time() => self.charge(set).await,
                Ok(reply) => {
                    let needed = if set.requires_durability() { &durability } else { &Ok(()) };
                    let outcome = decide_from_reply(script, set, plan, &reply, ChargeIntent::Charge);
                    outcome.map(|outcome| durable::with_durability(outcome, needed))
                }
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let (plan, reply) = self.read_records(set).await?;
        let mut replay = replay_reply(scripts::READ, &set.charges, &plan, &reply)?;
        Ok(decide(&mut replay, ChargeIntent::Peek))
    }

    /// The id is remembered beside the first subject: a caller that repeats a refund without some of its charges must
    /// send those of each subject by themselves.
    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let script = scripts::REFUND;
        let Some(first) = refund.set.charges.first() else {
            return Ok(Refunded::Lapsed);
        };
        self.require_heartbeat(script)?;
        // A loss of data loses the mark of an earlier refund, too.
        if refund.charged_at < self.server_state.data_since() {
            return Ok(Refunded::Lapsed);
        }
        let name = base64url(refund.id);
        let name = String::from_utf8_lossy(&name);
        let id = [key(first.subject, "r:", &name)];
        let (charged, until) = (micros(refund.charged_at), micros(refund.expires_at));
        let after = [charged.as_bytes(), until.as_bytes()];
        let charges: Vec<Charge<'_>> = refund.set.charges.iter().map(capped_charge).collect();
        let read = |_: &ScriptPlan, reply: ScriptReply| match reply.verdict() {
            Ok(1) => {
                self.server_state.acknowledged.lock().note_refund(reply.at);
                Ok(Refunded::Done)
            }
            Ok(0) => Ok(Refunded::Already),
            Ok(-1) => Ok(Refunded::Lapsed),
            _ => Err(rejected(script, ScriptReplyError::Shape)),
        };
        self.run(script, &charges, ChargeIntent::Charge, &id, &after, read).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        let script = scripts::DRAW;
        let charges = std::slice::from_ref(charge);
        let read = |plan: &ScriptPlan, reply: ScriptReply| {
            let units = reply.verdict().map_err(|error| rejected(script, error))?;
            let mut replay = replay_reply(script, charges, plan, &reply)?;
            let drawn = replay.draw();
            if u64::try_from(units) == Ok(drawn.units) {
                Ok(LeaseReply { snapshot: Some(snapshot_of(&replay, 0)), ..drawn })
            } else {
                Err(rejected(script, ScriptReplyError::Disagreement))
            }
        };
        self.run(script, charges, ChargeIntent::Charge, &[], &[], read).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.charge_as(set, ChargeIntent::Force).await
    }

    /// Each state is merged in a step of its own: merging is idempotent and commutative. All are sent in one
    /// pipeline, because with a round trip for each a node would never finish restoring.
    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        let script = scripts::RESTORE;
        Restore::check_all(restores).map_err(|error| rejected(script, error))?;
        let plan = |restore: &Restore<'_>| {
            let charges = std::slice::from_ref(&restore.charge);
            Ok((self.plan(script, charges, ChargeIntent::Charge)?, encode_state(restore)))
        };
        let plans: Vec<(ScriptPlan, Vec<u8>)> = restores.iter().map(plan).collect::<StoreResult<_>>()?;
        let calls = plans.iter();
        let calls =
            calls.map(|(plan, state)| ScriptCall { script, keys: &plan.keys, arguments: plan.arguments(&[state]) });
        let calls: Vec<ScriptCall<'_>> = calls.collect();
        let began = Instant::now();
        let replies = self.transport.call_each(&calls, None).await;
        let (replies, _) = replies.map_err(|reason| durable::unacknowledged_error(reason, Nanos::ZERO))?;
        for ((restore, (plan, _)), reply) in restores.iter().zip(&plans).zip(replies) {
            let reply = self.decode_reply(script, &plan.keys, reply, began)?;
            if reply.is_only_time() {
                self.restore_one(restore).await?;
            } else {
                check_merged(&reply)?;
            }
        }
        Ok(())
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        let (plan, reply) = self.read_records(set).await?;
        let replay = replay_reply(scripts::READ, &set.charges, &plan, &reply)?;
        let each = 0..set.charges.len();
        Ok(each.map(|charge| replay.inspection(charge)).collect())
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let script = scripts::RESET;
        let plan = self.plan(script, &set.charges, ChargeIntent::Charge)?;
        let rates: Vec<Vec<u8>> = (0..plan.keys.len())
            .map(|key| {
                let charges = set.charges.iter().zip(&plan.key_of);
                let of_key = charges.filter(|(_, of)| **of == key);
                of_key.map(|(charge, _)| charge.rate).collect()
            })
            .collect();
        let arguments = rates.iter().map(Vec::as_slice).collect();
        let mut keys = ledgers(&set.charges);
        keys.extend(keys_beside_records(&set.charges, PERMITS));
        keys.extend(plan.keys);
        let value = self.run_untimed(script, &keys, arguments).await?;
        number(&value).map_err(|error| rejected(script, error))
    }
}

impl Permits for RedisStore {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.call_permit_script(permit, "acquire").await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.call_permit_script(permit, "renew").await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.call_permit_script(permit, "release").await?;
        Ok(())
    }
}

/// The state to restore, as a record of one counter.
fn encode_state(restore: &Restore<'_>) -> Vec<u8> {
    let header = record::RecordHeader::of(restore.charge.rate, &restore.charge.limit);
    let one = [(&header, restore.charge.limit.as_ref(), &restore.state)];
    record::write(one.into_iter())
}

fn check_merged(reply: &ScriptReply) -> StoreResult<()> {
    match reply.verdict() {
        Ok(1) => Ok(()),
        _ => Err(rejected(scripts::RESTORE, ScriptReplyError::Shape)),
    }
}

impl RedisStore {
    async fn charge_as(&self, set: &ChargeSet<'_>, intent: ChargeIntent) -> StoreResult<Outcome> {
        self.run_decision(scripts::CHARGE, set, intent, &[], &[]).await
    }

    /// Merges one state, and plans anew if the store's time is outside the windows of the plan.
    async fn restore_one(&self, restore: &Restore<'_>) -> StoreResult<()> {
        let charges = std::slice::from_ref(&restore.charge);
        let read = |_: &ScriptPlan, reply: ScriptReply| check_merged(&reply);
        self.run(scripts::RESTORE, charges, ChargeIntent::Charge, &[], &[&encode_state(restore)], read).await
    }

    /// Charges each set on its own, so that only those fail that cannot be charged.
    async fn charge_one_by_one(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let mut outcomes = Vec::with_capacity(sets.len());
        for set in sets {
            outcomes.push(self.charge(set).await);
        }
        outcomes
    }

    async fn read_records(&self, set: &ChargeSet<'_>) -> StoreResult<(ScriptPlan, ScriptReply)> {
        let script = scripts::READ;
        let plan = self.plan(script, &set.charges, ChargeIntent::Charge)?;
        let call = ScriptCall { script, keys: &plan.keys, arguments: Vec::new() };
        let began = Instant::now();
        let reply = self.transport.call(&call).await;
        let reply = self.decode_reply(script, &plan.keys, reply, began)?;
        Ok((plan, reply))
    }

    /// Runs a script whose reply does not begin with the time.
    async fn run_untimed(&self, script: Script, keys: &[Vec<u8>], arguments: Vec<&[u8]>) -> StoreResult<Value> {
        let call = ScriptCall { script, keys, arguments };
        let began = Instant::now();
        let reply = self.transport.call(&call).await;
        let waited = Nanos::from(began.elapsed());
        reply.map_err(|error| error.with_keys(keys).into_store_error(script.name, waited))
    }

    /// Runs the permit script: `verb` is `acquire`, `renew` or `release`.
    async fn call_permit_script(&self, permit: &PermitRequest<'_>, verb: &str) -> StoreResult<PermitReply> {
        let script = scripts::PERMIT;
        let keys = [key(permit.subject, PERMITS, permit.rule.as_str())];
        let (holder, max) = (permit.holder.to_be_bytes(), permit.max_permits.to_string());
        let ttl = permit.ttl.get().div_ceil(1_000).min(1 << 50).to_string();
        let arguments = [&holder, verb.as_bytes(), max.as_bytes(), ttl.as_bytes()];
        let reply = self.run_untimed(script, &keys, arguments.to_vec()).await?;
        match list(&reply).unwrap_or_default() {
            [Value::Int(granted), Value::Int(in_use)] => Ok(PermitReply {
                granted: *granted == 1,
                in_use: u32::try_from(*in_use).unwrap_or(u32::MAX),
                source: Source::Exact,
                degraded: None,
            }),
            _ => Err(rejected(script, ScriptReplyError::Shape)),
        }
    }
}

/// Replays the decision on a set from the script's reply. It must be the same as the script's own decision.
pub(super) fn decide_from_reply(
    script: Script,
    set: &ChargeSet<'_>,
    plan: &ScriptPlan,
    reply: &ScriptReply,
    intent: ChargeIntent,
) -> StoreResult<Outcome> {
    let admitted = reply.verdict().map_err(|error| rejected(script, error))?;
    let outcome = decide(&mut replay_reply(script, &set.charges, plan, reply)?, intent);
    if outcome.admitted == (admitted == 1) {
        Ok(outcome)
    } else {
        Err(rejected(script, ScriptReplyError::Disagreement))
    }
}

fn replay_reply<'c>(
    script: Script,
    charges: &'c [Charge<'c>],
    plan: &ScriptPlan,
    reply: &ScriptReply,
) -> StoreResult<DecisionReplay<'c>> {
    let records = reply.records().map_err(|error| rejected(script, error))?;
    open_replay(charges, plan, &records, reply.at).map_err(|error| rejected(script, error))
}

/// A charge whose cost is capped at what a counter can hold: units above that were not charged either.
fn capped_charge<'c>(charge: &'c Charge<'_>) -> Charge<'c> {
    let max_units = charge.limit.full_capacity().saturating_mul(2);
    Charge {
        limit: Cow::Borrowed(charge.limit.as_ref()),
        cost: Cost::new(max_units).map_or(charge.cost, |max_units| max_units.min(charge.cost)),
        ..*charge
    }
}
