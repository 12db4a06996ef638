//! What a refund needs, sealed: who was charged, when and how much.
//!
//! A receipt is text that a caller keeps and hands back. It is sealed with the deployment secret, so
//! it cannot be made up or altered, and it carries no client data: subjects are fingerprints. That it
//! works once is the store's promise, by its id.

use tidegate_core::algorithms::Verdict;
use tidegate_core::engine::Decision;
use tidegate_core::rules::RuleSet;
use tidegate_core::store::{Charge, ChargeSet, Refund, Role};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use crate::secret::{SEAL_LEN, Secret};

const VERSION: u8 = 1;
/// A receipt of more charges than any request can have is not one of ours.
const MOST_BYTES: usize = 64 * 1024;

/// Why a receipt is not honoured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReceiptError {
    /// It was altered, made up, or sealed with another secret.
    #[error("this is not a receipt of this deployment")]
    Forged,
}

/// A receipt that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Receipt {
    id: u128,
    charged: Nanos,
    until: Nanos,
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    rule: String,
    rate: u8,
    tag: u32,
    subject: Fingerprint,
    cost: Cost,
}

impl Receipt {
    /// The receipt of a decision that charged something. `draw` makes an id, the first time.
    pub(crate) fn of(decision: &Decision, draw: impl FnOnce() -> u128) -> Option<Self> {
        let id = decision.charge_id(draw)?;
        let charged = |role, verdict: Verdict| role == Role::Enforce || verdict.allows();
        let views = decision
            .limits()
            .filter(|view| charged(view.role, view.reading.verdict));
        let mut until = decision.at();
        let entries: Vec<Entry> = views
            .map(|view| {
                until = until.max(decision.at().plus(view.reading.figures.reset_after));
                Entry {
                    rule: view.rule.name().as_str().to_owned(),
                    rate: view.rate,
                    tag: view.limit.tag(),
                    subject: view.subject,
                    cost: view.cost,
                }
            })
            .collect();
        (!entries.is_empty()).then_some(Receipt {
            id,
            charged: decision.at(),
            until,
            entries,
        })
    }

    /// What to ask of the store. A rule that has changed since is left out: what a unit of then is
    /// worth now cannot be said, and giving back too little is the safe side.
    pub(crate) fn refund<'r>(&self, rules: &'r RuleSet) -> Refund<'r> {
        let charges = self.entries.iter().filter_map(|entry| {
            let rule = rules.rule(&entry.rule)?;
            let limit = rule.limit_tagged(usize::from(entry.rate), entry.tag)?;
            Some(Charge {
                subject: entry.subject,
                rule: rule.name(),
                rate: entry.rate,
                limit: std::borrow::Cow::Owned(limit.for_subject(entry.subject.seed())),
                cost: entry.cost,
                role: Role::Enforce,
                terms: rule.terms(),
            })
        });
        Refund {
            id: self.id,
            charged: self.charged,
            until: self.until,
            set: ChargeSet {
                charges: charges.collect(),
            },
        }
    }

    /// As sealed text.
    pub(crate) fn seal(&self, secret: &Secret) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.charged.get().to_be_bytes());
        bytes.extend(self.until.get().to_be_bytes());
        for entry in &self.entries {
            let name = entry.rule.as_bytes();
            bytes.extend(u16::try_from(name.len()).unwrap_or(0).to_be_bytes());
            bytes.extend(name);
            bytes.push(entry.rate);
            bytes.extend(entry.tag.to_be_bytes());
            bytes.extend(entry.subject.bits().to_be_bytes());
            bytes.extend(entry.cost.get().to_be_bytes());
        }
        let seal = secret.seal(&bytes);
        bytes.extend(seal);
        to_hex(&bytes)
    }

    /// From sealed text.
    pub(crate) fn open(text: &str, secret: &Secret) -> Result<Self, ReceiptError> {
        let bytes = from_hex(text).ok_or(ReceiptError::Forged)?;
        let split = bytes.len().checked_sub(SEAL_LEN);
        let (payload, seal) = split
            .map(|at| bytes.split_at(at))
            .ok_or(ReceiptError::Forged)?;
        if !secret.sealed(payload, seal) {
            return Err(ReceiptError::Forged);
        }
        Receipt::read(payload).ok_or(ReceiptError::Forged)
    }

    fn read(payload: &[u8]) -> Option<Self> {
        let mut from = Reader(payload);
        let [VERSION] = from.take()? else { return None };
        let mut receipt = Receipt {
            id: u128::from_be_bytes(from.take()?),
            charged: Nanos::new(u64::from_be_bytes(from.take()?)),
            until: Nanos::new(u64::from_be_bytes(from.take()?)),
            entries: Vec::new(),
        };
        while !from.0.is_empty() {
            let name_len = usize::from(u16::from_be_bytes(from.take()?));
            let (name, rest) = from.0.split_at_checked(name_len)?;
            from.0 = rest;
            receipt.entries.push(Entry {
                rule: String::from_utf8(name.to_vec()).ok()?,
                rate: u8::from_be_bytes(from.take()?),
                tag: u32::from_be_bytes(from.take()?),
                subject: Fingerprint::new(u128::from_be_bytes(from.take()?)),
                cost: Cost::new(u64::from_be_bytes(from.take()?))?,
            });
        }
        Some(receipt)
    }
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * MOST_BYTES || !text.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let bytes = text.as_bytes().chunks_exact(2).map(|pair| {
        let byte = nibble(pair[0])? * 16 + nibble(pair[1])?;
        u8::try_from(byte).ok()
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        Receipt {
            id: 42,
            charged: Nanos::from_secs(1),
            until: Nanos::from_secs(61),
            entries: vec![Entry {
                rule: "search".into(),
                rate: 1,
                tag: 7,
                subject: Fingerprint::new(99),
                cost: Cost::ONE,
            }],
        }
    }

    #[test]
    fn what_is_sealed_can_be_opened() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let text = receipt().seal(&secret);
        assert_eq!(Receipt::open(&text, &secret), Ok(receipt()));
    }

    #[test]
    fn no_digit_can_be_changed_and_none_left_out() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let text = receipt().seal(&secret);
        for at in 0..text.len() {
            let mut altered = text.clone().into_bytes();
            altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
            let altered = String::from_utf8(altered).unwrap();
            assert_eq!(Receipt::open(&altered, &secret), Err(ReceiptError::Forged));
            assert_eq!(
                Receipt::open(&text[..at], &secret),
                Err(ReceiptError::Forged)
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        for text in ["", "0", "zz", "é", "00", &"0".repeat(300_000)] {
            assert_eq!(Receipt::open(text, &secret), Err(ReceiptError::Forged));
        }
    }
}
