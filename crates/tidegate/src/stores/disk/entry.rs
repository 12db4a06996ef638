//! What a journal holds: counters and refunds, each under its name and with its expiry.
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

use tidegate_core::algorithms::{Limit, State};
use tidegate_core::store::{Charge, Role, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::file::Change;
use crate::stores::record::{self, Counter, Garbled, Header};

/// Which counter, under which limit.
#[derive(Clone, Debug)]
pub(super) struct Journaled {
    pub(super) subject: Fingerprint,
    pub(super) rule: RuleName,
    pub(super) rate: u8,
    pub(super) limit: Limit,
}

impl Journaled {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        Journaled {
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

    /// A charge that asks for the counter; its cost does not matter.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: self.rate,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            terms: &Terms::USUAL,
        }
    }

    /// The record of a counter that stands as `state` until `expires`.
    pub(super) fn record(&self, state: &State, expires: Nanos) -> Vec<u8> {
        let header = Header::of(self.rate, &self.limit);
        let one = [(&header, &self.limit, state)];
        let mut bytes = expires.get().to_le_bytes().to_vec();
        bytes.extend_from_slice(&record::write(one.into_iter()));
        bytes
    }
}

/// A counter that was found.
pub(super) struct Found {
    pub(super) subject: Fingerprint,
    pub(super) rule: RuleName,
    pub(super) rate: u8,
    pub(super) counter: Counter,
}

impl Found {
    pub(super) fn read(name: &[u8], bytes: &[u8]) -> Result<Found, Garbled> {
        let (subject, rest) = name.split_first_chunk().ok_or(Garbled::Damaged)?;
        let (rate, rule) = rest.split_first().ok_or(Garbled::Damaged)?;
        let rule = std::str::from_utf8(rule).map_err(|_| Garbled::Damaged)?;
        let (_, record) = bytes.split_first_chunk::<8>().ok_or(Garbled::Damaged)?;
        let mut counters = record::read(record)?;
        let counter = counters.pop().filter(|c| c.header.rate() == *rate);
        Ok(Found {
            subject: Fingerprint::new(u128::from_be_bytes(*subject)),
            rule: RuleName::new(rule),
            rate: *rate,
            counter: counter
                .filter(|_| counters.is_empty())
                .ok_or(Garbled::Damaged)?,
        })
    }

    /// Its state under `limit`, that the rule has now.
    pub(super) fn under(self, limit: &Limit, now: Nanos) -> State {
        match Header::of(self.rate, limit) == self.counter.header {
            true => self.counter.state,
            false => limit.adopt(&self.counter.limit, self.counter.state, now),
        }
    }
}

/// A refund that was made, and when its id may be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RefundNote {
    pub(super) id: u128,
    pub(super) until: Nanos,
}

impl RefundNote {
    pub(super) fn change(self) -> Change {
        let name = self.id.to_be_bytes().to_vec();
        (name, Some(self.until.get().to_le_bytes().to_vec()))
    }

    pub(super) fn read(name: &[u8], record: &[u8]) -> Result<Self, Garbled> {
        let id = name.try_into().map_err(|_| Garbled::Damaged)?;
        let until = record.try_into().map_err(|_| Garbled::Damaged)?;
        Ok(RefundNote {
            id: u128::from_be_bytes(id),
            until: Nanos::new(u64::from_le_bytes(until)),
        })
    }
}

/// Whether a record has nothing left to tell. One that cannot be read has: it is told of elsewhere.
pub(super) fn is_past(bytes: &[u8], now: Nanos) -> bool {
    let expires = bytes.split_first_chunk::<8>();
    expires.is_some_and(|(expires, _)| u64::from_le_bytes(*expires) <= now.get())
}
