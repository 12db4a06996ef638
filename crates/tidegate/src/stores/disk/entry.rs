//! The entries of a journal: counters and refunds, each with a name and an expiry.
//!
//! | of a counter | bytes |
//! |---|---|
//! | name | subject (16, big-endian), rate (1), rule |
//! | record | expiry in nanoseconds (8, little-endian), then a record of one counter |
//!
//! | of a refund | bytes |
//! |---|---|
//! | name | id (16, big-endian) |
//! | record | expiry in nanoseconds (8, little-endian) |

use std::borrow::Cow;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::{Charge, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::file::JournalChange;
use crate::stores::record::{self, RecordCounter, RecordError, RecordHeader};

/// A counter and its limit.
#[derive(Clone, Debug)]
pub(super) struct JournaledCounter {
    pub(super) subject: Fingerprint,
    pub(super) rule: RuleName,
    pub(super) rate: u8,
    pub(super) limit: Limit,
}

impl JournaledCounter {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        JournaledCounter {
            subject: charge.subject,
            rule: charge.rule.clone(),
            rate: charge.rate,
            limit: charge.limit.as_ref().clone(),
        }
    }

    pub(super) fn name(&self) -> Vec<u8> {
        let mut name = self.subject.bits().to_be_bytes().to_vec();
        name.push(self.rate);
        name.extend_from_slice(self.rule.as_str().as_bytes());
        name
    }

    /// A charge that identifies the counter; its cost does not matter.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: self.rate,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        }
    }

    /// The record of a counter with `state` that expires at `expires`.
    pub(super) fn record(&self, state: &CounterState, expires: Nanos) -> Vec<u8> {
        let header = RecordHeader::of(self.rate, &self.limit);
        let one = [(&header, &self.limit, state)];
        let mut bytes = expires.get().to_le_bytes().to_vec();
        bytes.extend_from_slice(&record::write(one.into_iter()));
        bytes
    }
}

/// A decoded counter.
pub(super) struct JournalRecord {
    pub(super) subject: Fingerprint,
    pub(super) rule: RuleName,
    pub(super) rate: u8,
    pub(super) counter: RecordCounter,
}

impl JournalRecord {
    pub(super) fn read(name: &[u8], bytes: &[u8]) -> Result<JournalRecord, RecordError> {
        let (subject, rest) = name.split_first_chunk().ok_or(RecordError::Damaged)?;
        let (rate, rule) = rest.split_first().ok_or(RecordError::Damaged)?;
        let rule = std::str::from_utf8(rule).map_err(|_| RecordError::Damaged)?;
        let (_, record) = bytes.split_first_chunk::<8>().ok_or(RecordError::Damaged)?;
        let mut counters = record::read(record)?;
        let counter = counters.pop().filter(|c| c.header.rate() == *rate);
        Ok(JournalRecord {
            subject: Fingerprint::new(u128::from_be_bytes(*subject)),
            rule: RuleName::new(rule),
            rate: *rate,
            counter: counter.filter(|_| counters.is_empty()).ok_or(RecordError::Damaged)?,
        })
    }

    /// Its state under `limit`, the current limit of the rule.
    pub(super) fn state_under(self, limit: &Limit, now: Nanos) -> CounterState {
        if RecordHeader::of(self.rate, limit) == self.counter.header {
            self.counter.state
        } else {
            limit.adopt(&self.counter.limit, self.counter.state, now)
        }
    }
}

/// The record of a refund that was made, and whose id may be forgotten at `until`.
pub(super) fn refund_change(id: u128, until: Nanos) -> JournalChange {
    (id.to_be_bytes().to_vec(), Some(until.get().to_le_bytes().to_vec()))
}

/// The id of a refund, and when it may be forgotten.
pub(super) fn read_refund(name: &[u8], record: &[u8]) -> Result<(u128, Nanos), RecordError> {
    let id = name.try_into().map_err(|_| RecordError::Damaged)?;
    let until = record.try_into().map_err(|_| RecordError::Damaged)?;
    Ok((u128::from_be_bytes(id), Nanos::new(u64::from_le_bytes(until))))
}

/// Whether a record has expired. A damaged record has not: it is reported elsewhere.
pub(super) fn is_expired(bytes: &[u8], now: Nanos) -> bool {
    let expires = bytes.split_first_chunk::<8>();
    expires.is_some_and(|(expires, _)| u64::from_le_bytes(*expires) <= now.get())
}
