//! The store trait, filled. Every verb is one script call.

use std::borrow::Cow;
use std::time::Instant;

use redis::Value;
use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Outcome, Refund, Refunded, Reserve, Seed,
    Settle, Settled, Source, Store, StoreError, Unacknowledged,
};
use tidegate_core::units::{Cost, Nanos};

use super::books::{Books, Intent};
use super::durable::{self, Need};
use super::link::Call;
use super::plan::{Plan, Spending, key, text};
use super::record;
use super::reply::{Nonsense, Reply, number};
use super::reservations::{beside_records, ledgers};
use super::scripts::{self, Script};
use super::{RedisStore, refused};

type Answer<T> = Result<T, StoreError>;

/// What the keys of slots begin with after their tag.
pub(super) const SLOTS: &str = "s:";

impl Store for RedisStore {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let script = scripts::CHARGE;
        let read = |plan: &Plan, reply| decided(script, set, plan, &reply, Intent::Charge);
        self.run(script, &set.charges, Spending::Charge, &[], &[], read)
            .await
    }

    /// All of them on one connection and in one go.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let now = self.about_now();
        let plan = |set: &&ChargeSet<'_>| Plan::new(&set.charges, Spending::Charge, now);
        let plans: Result<Vec<Plan>, _> = sets.iter().map(plan).collect();
        let Ok(plans) = plans else {
            // One of them cannot be planned: each on its own then, to tell which.
            let mut outcomes = Vec::with_capacity(sets.len());
            for set in sets {
                outcomes.push(self.charge(set).await);
            }
            return outcomes;
        };
        let script = scripts::CHARGE;
        let mut calls = Vec::with_capacity(plans.len());
        for plan in &plans {
            calls.push(Call {
                script,
                keys: &plan.keys,
                arguments: plan.arguments(&[]),
            });
        }
        let began = Instant::now();
        let (answers, safe) = match Need::of_each(script, sets) {
            None => (self.way.call_each(&calls).await, Ok(())),
            Some(need) => match self.way.call_safely(&calls, need).await {
                Ok(sent) => sent,
                Err(why) => return self.charge_others(sets, &why, began).await,
            },
        };
        let mut outcomes = Vec::with_capacity(sets.len());
        for ((set, plan), answer) in sets.iter().zip(&plans).zip(answers) {
            outcomes.push(match self.reply(script, &plan.keys, answer, began) {
                Ok(reply) if reply.is_only_time() => self.charge(set).await,
                Ok(reply) => match set.waits() {
                    true => durable::confirm(&reply, &safe, began),
                    false => Ok(()),
                }
                .and_then(|()| decided(script, set, plan, &reply, Intent::Charge)),
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let (plan, reply) = self.look(set).await?;
        let mut books = open(scripts::READ, &set.charges, &plan, &reply)?;
        Ok(books.decide(set, Intent::Peek))
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let script = scripts::REFUND;
        let Some(first) = refund.set.charges.first() else {
            return Ok(Refunded::Lapsed);
        };
        self.require_met(script)?;
        // Whether it was refunded before went with the data.
        if refund.charged < self.memo.data_since() {
            return Ok(Refunded::Lapsed);
        }
        let name = text(refund.id);
        let name = String::from_utf8_lossy(&name);
        let id = [key(first.subject, "r:", &name)];
        let micros = |time: Nanos| time.get().div_ceil(1_000).to_string();
        let (charged, until) = (micros(refund.charged), micros(refund.until));
        let after = [charged.as_bytes(), until.as_bytes()];
        let charges: Vec<Charge<'_>> = refund.set.charges.iter().map(at_most_kept).collect();
        let read = |_: &Plan, reply: Reply| match reply.verdict() {
            Ok(1) => {
                self.memo.acknowledged.lock().note_refund(reply.at);
                Ok(Refunded::Done)
            }
            Ok(0) => Ok(Refunded::Already),
            Ok(-1) => Ok(Refunded::Lapsed),
            _ => Err(refused(script, Nonsense::Shape)),
        };
        self.run(script, &charges, Spending::Charge, &id, &after, read)
            .await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        let script = scripts::GRANT;
        let charges = std::slice::from_ref(charge);
        let read = |plan: &Plan, reply: Reply| {
            let taken = reply.verdict().map_err(|error| refused(script, error))?;
            let granted = open(script, charges, plan, &reply)?.grant();
            match u64::try_from(taken) == Ok(granted.units) {
                true => Ok(granted),
                false => Err(refused(script, Nonsense::Disagreement)),
            }
        };
        self.run(script, charges, Spending::Charge, &[], &[], read)
            .await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let script = scripts::CHARGE;
        let read = |plan: &Plan, reply| decided(script, set, plan, &reply, Intent::Force);
        self.run(script, &set.charges, Spending::Force, &[], &[], read)
            .await
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        self.reserve_in_ledgers(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.settle_in_ledgers(settle).await
    }

    /// Each seed is a step of its own: merging is the same in any order and any number of times. All of
    /// them are sent in one go, because a round trip for each would keep a node from ever being done.
    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        let script = scripts::SEED;
        if seeds.iter().any(|s| !s.charge.limit.fits(&s.state)) {
            return Err(refused(script, Misfit));
        }
        let now = self.about_now();
        let plan = |seed: &Seed<'_>| {
            let charges = std::slice::from_ref(&seed.charge);
            Plan::new(charges, Spending::Charge, now)
        };
        let plans: Result<Vec<Plan>, _> = seeds.iter().map(plan).collect();
        let plans = plans.map_err(|error| refused(script, error))?;
        let states: Vec<Vec<u8>> = seeds.iter().map(written).collect();
        let mut calls = Vec::with_capacity(plans.len());
        for (plan, state) in plans.iter().zip(&states) {
            calls.push(Call {
                script,
                keys: &plan.keys,
                arguments: plan.arguments(&[state]),
            });
        }
        let began = Instant::now();
        let answers = self.way.call_each(&calls).await;
        for ((seed, plan), answer) in seeds.iter().zip(&plans).zip(answers) {
            let reply = self.reply(script, &plan.keys, answer, began)?;
            match reply.is_only_time() {
                true => self.seed_one(seed).await?,
                false => merged(&reply)?,
            }
        }
        Ok(())
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.slots(hold, "take").await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.slots(hold, "renew").await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.slots(hold, "release").await?;
        Ok(())
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        let (plan, reply) = self.look(set).await?;
        let books = open(scripts::READ, &set.charges, &plan, &reply)?;
        let each = 0..set.charges.len();
        Ok(each.map(|charge| books.inspection(charge)).collect())
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let script = scripts::RESET;
        let plan = Plan::new(&set.charges, Spending::Charge, self.about_now());
        let plan = plan.map_err(|error| refused(script, error))?;
        let rates: Vec<Vec<u8>> = (0..plan.keys.len())
            .map(|key| {
                let charges = set.charges.iter().zip(&plan.of);
                let of_key = charges.filter(|(_, of)| **of == key);
                of_key.map(|(charge, _)| charge.rate).collect()
            })
            .collect();
        let arguments = rates.iter().map(Vec::as_slice).collect();
        let mut keys = ledgers(&set.charges);
        keys.extend(beside_records(&set.charges, SLOTS));
        keys.extend(plan.keys);
        let value = self.plain(script, &keys, arguments).await?;
        number(&value).map_err(|error| refused(script, error))
    }
}

/// The state of a seed as a record of its own.
fn written(seed: &Seed<'_>) -> Vec<u8> {
    let header = record::Header::of(seed.charge.rate, &seed.charge.limit);
    let one = [(&header, seed.charge.limit.as_ref(), &seed.state)];
    record::write(one.into_iter())
}

fn merged(reply: &Reply) -> Answer<()> {
    match reply.verdict() {
        Ok(1) => Ok(()),
        _ => Err(refused(scripts::SEED, Nonsense::Shape)),
    }
}

impl RedisStore {
    /// Merges one state, whatever the time in the store is.
    async fn seed_one(&self, seed: &Seed<'_>) -> Answer<()> {
        let charges = std::slice::from_ref(&seed.charge);
        let (script, spending) = (scripts::SEED, Spending::Charge);
        let read = |_: &Plan, reply: Reply| merged(&reply);
        self.run(script, charges, spending, &[], &[&written(seed)], read)
            .await
    }

    /// Charges the sets of a list that need not be safe; `why` the others cannot be.
    async fn charge_others(
        &self,
        sets: &[&ChargeSet<'_>],
        why: &Unacknowledged,
        began: Instant,
    ) -> Vec<Answer<Outcome>> {
        let mut outcomes = Vec::with_capacity(sets.len());
        for set in sets {
            let waited = Nanos::from(began.elapsed());
            outcomes.push(match set.waits() {
                true => Err(durable::unsafe_after(why.clone(), waited)),
                false => self.charge(set).await,
            });
        }
        outcomes
    }

    /// Reads the records of a set.
    async fn look(&self, set: &ChargeSet<'_>) -> Answer<(Plan, Reply)> {
        let script = scripts::READ;
        let plan = Plan::new(&set.charges, Spending::Charge, self.about_now());
        let plan = plan.map_err(|error| refused(script, error))?;
        let call = Call {
            script,
            keys: &plan.keys,
            arguments: Vec::new(),
        };
        let began = Instant::now();
        let answer = self.way.call(&call).await;
        let reply = self.reply(script, &plan.keys, answer, began)?;
        Ok((plan, reply))
    }

    /// Runs a script that does not tell the time.
    async fn plain(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        arguments: Vec<&[u8]>,
    ) -> Answer<Value> {
        let call = Call {
            script,
            keys,
            arguments,
        };
        let began = Instant::now();
        let answer = self.way.call(&call).await;
        let waited = Nanos::from(began.elapsed());
        answer.map_err(|fault| fault.at_keys(keys).into_store_error(script.name, waited))
    }

    /// Does `verb` to a slot.
    async fn slots(&self, hold: &Hold<'_>, verb: &str) -> Answer<Held> {
        let script = scripts::HOLD;
        let keys = [key(hold.subject, SLOTS, hold.rule.as_str())];
        let (holder, most) = (hold.holder.to_be_bytes(), hold.most.to_string());
        let lasts = hold.lasts.get().div_ceil(1_000).min(1 << 50).to_string();
        let arguments = [&holder, verb.as_bytes(), most.as_bytes(), lasts.as_bytes()];
        let answer = self.plain(script, &keys, arguments.to_vec()).await?;
        let values = match &answer {
            Value::Array(values) => values.as_slice(),
            _ => &[],
        };
        match values {
            [Value::Int(held), Value::Int(open)] => Ok(Held {
                granted: *held == 1,
                open: u32::try_from(*open).unwrap_or(u32::MAX),
                source: Source::Exact,
            }),
            _ => Err(refused(script, Nonsense::Shape)),
        }
    }
}

/// The decision on a set, from what the script found; it must be the script's own.
pub(super) fn decided(
    script: Script,
    set: &ChargeSet<'_>,
    plan: &Plan,
    reply: &Reply,
    intent: Intent,
) -> Answer<Outcome> {
    let admitted = reply.verdict().map_err(|error| refused(script, error))?;
    let outcome = open(script, &set.charges, plan, reply)?.decide(set, intent);
    match outcome.admitted == (admitted == 1) {
        true => Ok(outcome),
        false => Err(refused(script, Nonsense::Disagreement)),
    }
}

fn open<'c>(
    script: Script,
    charges: &'c [Charge<'c>],
    plan: &'c Plan,
    reply: &Reply,
) -> Answer<Books<'c>> {
    let records = reply.records().map_err(|error| refused(script, error))?;
    let books = Books::open(charges, plan, &records, reply.at);
    books.map_err(|error| refused(script, error))
}

/// A charge with no more cost than a counter ever keeps: what was beyond that was not charged either.
fn at_most_kept<'c>(charge: &'c Charge<'_>) -> Charge<'c> {
    let kept = charge.limit.whole().saturating_mul(2);
    Charge {
        limit: Cow::Borrowed(charge.limit.as_ref()),
        cost: Cost::new(kept).map_or(charge.cost, |kept| kept.min(charge.cost)),
        ..*charge
    }
}

/// A seed whose state was not made by its limit. Nothing was merged.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the state of a seed is not of its limit's algorithm")]
struct Misfit;
