//! Encodes a charge set for the scripts: keys, a plan, and the headers of its counters.
//!
//! `scripts/accounts.lua` documents the layout of a plan.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Limit, Parameters};
use tidegate_core::store::{Charge, ChargeIntent, Role};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Nanos, Tick};

use super::record::{self, END_OF_TIME, RecordHeader};

/// The length of one charge in a plan, in bytes.
const CHARGE_LEN: usize = 67;

/// Charges that a script cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PlanError {
    /// A limit whose products a script would round.
    #[error("a limit was compiled for memory; compile the rules with `Precision::Double`")]
    Inexact,
    /// More rules than a call can carry.
    #[error("a request touches more than 255 records")]
    TooMany,
}

/// An encoded charge set.
#[derive(Debug)]
pub(super) struct ScriptPlan {
    /// One per rule and subject.
    pub(super) keys: SmallVec<[Vec<u8>; 2]>,
    /// The plan that `scripts/accounts.lua` reads.
    pub(super) bytes: Vec<u8>,
    /// For each key, the first bytes of a record with exactly these counters.
    pub(super) heads: SmallVec<[Vec<u8>; 2]>,
    /// For each charge, the index of its key.
    pub(super) key_of: SmallVec<[usize; 4]>,
    /// For each charge, its header.
    pub(super) headers: SmallVec<[RecordHeader; 4]>,
}

impl ScriptPlan {
    /// Plans `charges`. `now` is the approximate time of the store.
    pub(super) fn new(charges: &[Charge<'_>], intent: ChargeIntent, now: Nanos) -> Result<ScriptPlan, PlanError> {
        let mut owners: SmallVec<[(Fingerprint, &RuleName); 2]> = SmallVec::new();
        let mut plan = ScriptPlan {
            keys: SmallVec::new(),
            bytes: Vec::with_capacity(1 + CHARGE_LEN * charges.len()),
            heads: SmallVec::new(),
            key_of: SmallVec::new(),
            headers: SmallVec::new(),
        };
        plan.bytes.push(0);
        for charge in charges {
            if !charge.limit.is_exact_in_doubles() {
                return Err(PlanError::Inexact);
            }
            let known = owners.iter().position(|(subject, rule)| *subject == charge.subject && *rule == charge.rule);
            let key = known.unwrap_or_else(|| {
                owners.push((charge.subject, charge.rule));
                plan.keys.push(key(charge.subject, ":", charge.rule.as_str()));
                owners.len() - 1
            });
            let number = u8::try_from(key + 1).map_err(|_| PlanError::TooMany)?;
            plan.key_of.push(key);
            plan.headers.push(RecordHeader::of(charge.rate, &charge.limit));
            plan.push_charge(number, charge, now);
        }
        for key in 0..plan.keys.len() {
            let headers: SmallVec<[&RecordHeader; 4]> = plan.headers_of(key).collect();
            plan.heads.push(record::encode_headers(headers.into_iter()));
        }
        plan.bytes[0] = match intent {
            ChargeIntent::Force => 2,
            ChargeIntent::Charge | ChargeIntent::Peek => u8::from(plan.is_plain(charges)),
        };
        Ok(plan)
    }

    /// The arguments of a script: the plan, the heads, then the script's `own` arguments.
    pub(super) fn arguments<'a>(&'a self, own: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let heads = self.heads.iter().map(Vec::as_slice);
        let plan = std::iter::once(self.bytes.as_slice());
        plan.chain(heads).chain(own.iter().copied()).collect()
    }

    fn headers_of(&self, key: usize) -> impl Iterator<Item = &RecordHeader> {
        let charges = self.key_of.iter().zip(&self.headers);
        charges.filter_map(move |(of, header)| (*of == key).then_some(header))
    }

    /// Whether the script may use its fast path: enforced charges of plain counters, record by record, each with
    /// its rates in order.
    fn is_plain(&self, charges: &[Charge<'_>]) -> bool {
        let plain = |charge: &Charge<'_>| {
            let counted = match charge.limit.parameters() {
                Parameters::Bucket { max_delay, .. } => max_delay.is_none(),
                Parameters::Fixed { guard, .. } => guard == 0,
                Parameters::Sliding { .. } => true,
                _ => false,
            };
            counted && charge.role == Role::Enforce && charge.cost.get() <= charge.limit.capacity()
        };
        let positions = self.key_of.iter().zip(charges).map(|(key, c)| (*key, c.rate));
        charges.iter().all(plain) && positions.is_sorted_by(|a, b| a < b)
    }

    fn push_charge(&mut self, key: u8, charge: &Charge<'_>, now: Nanos) {
        let (limit, cost) = (charge.limit.as_ref(), charge.cost.get());
        let role = match charge.role {
            Role::Enforce => 0,
            Role::Shadow => 1,
            Role::Quota => 2,
        };
        let shape = self.headers.last().map_or(0, RecordHeader::shape);
        self.bytes.extend([key, role, shape]);
        let unit = (limit.tick().nanos() / 1_000) as f64;
        let of_kind = match limit.parameters() {
            Parameters::Bucket { per_token, per_tick, tokens, max_delay } => {
                let max = (limit.capacity() * per_token) as f64;
                let need = cost.min(tokens) * per_token;
                [need as f64, max - need as f64, per_tick as f64, unit, max_delay.map_or(-1.0, |ticks| ticks as f64)]
            }
            Parameters::Calendar { edges, .. } => edges_around(&edges, limit, now).map(|edge| edge as f64),
            Parameters::Fixed { width, phase, .. } => [width as f64, phase as f64, 0.0, unit, 0.0],
            Parameters::Sliding { width, .. } => [width as f64, 0.0, 0.0, unit, 0.0],
            Parameters::Strict { .. } | Parameters::Log { .. } => [0.0; 5],
        };
        let numbers = [cost as f64, limit.capacity() as f64];
        let whole = [limit.full_capacity() as f64];
        for number in numbers.into_iter().chain(of_kind).chain(whole) {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// A key with the hash tag of its subject. `sort` follows the tag: it begins with `:` for a record and with a
/// letter for any other key, so that no rule name can make one look like another.
pub(super) fn key(subject: Fingerprint, sort: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(28 + sort.len() + name.len());
    key.extend_from_slice(b"tg:{");
    key.extend_from_slice(&base64url(subject.bits()));
    key.push(b'}');
    key.extend_from_slice(sort.as_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// Encodes 128 bits in base64url, without padding.
pub(super) fn base64url(bits: u128) -> [u8; 22] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = [0; 22];
    for (i, digit) in text.iter_mut().enumerate() {
        let six = match i {
            21 => bits << 4,
            _ => bits >> (122 - 6 * i),
        };
        *digit = DIGITS[(six & 63) as usize];
    }
    text
}

/// Five edges, `now` between the second and the third: enough to read any window near the present.
fn edges_around(edges: &Arc<[Nanos]>, limit: &Limit, now: Nanos) -> [u64; 5] {
    let tick: Tick = limit.tick();
    let after = edges.partition_point(|edge| *edge <= now);
    [0, 1, 2, 3, 4].map(|i| match (after + i).checked_sub(2) {
        None => 0,
        Some(at) => edges.get(at).map_or(END_OF_TIME, |edge| tick.floor(*edge)),
    })
}
