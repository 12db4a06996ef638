//! The permits that one request holds, also as sealed text.
//!
//! The text is for callers that are other programs, and contains no client data.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use crate::sealed::{self, ByteReader, put_name};
use crate::secret::Secret;

/// First byte of the payload. No receipt begins with it, so neither is accepted as the other.
const KIND: u8 = b's';

/// Why the text of a ticket is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum TicketError {
    /// The text was altered, forged, or sealed with another secret.
    #[error("this is not a permit of this deployment")]
    Forged,
}

/// The permits of one request: all have one holder, and expire together unless they are renewed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(super) holder: u128,
    pub(super) ttl: Nanos,
    pub(super) permits: SmallVec<[TicketPermit; 2]>,
}

/// One permit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TicketPermit {
    pub(super) rule: RuleName,
    pub(super) subject: Fingerprint,
    pub(super) location: PermitLocation,
}

/// Where a permit is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PermitLocation {
    /// In the store, with the counters.
    Store,
    /// On the node that granted it.
    Node,
}

impl Ticket {
    /// How long the permits last without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl.duration()
    }

    /// As sealed text.
    pub(super) fn seal(&self, secret: &Secret) -> String {
        let mut bytes = vec![KIND];
        bytes.extend(self.holder.to_be_bytes());
        bytes.extend(self.ttl.get().to_be_bytes());
        for permit in &self.permits {
            put_name(&mut bytes, permit.rule.as_str());
            bytes.extend(permit.subject.bits().to_be_bytes());
            bytes.push(match permit.location {
                PermitLocation::Store => 0,
                PermitLocation::Node => 1,
            });
        }
        sealed::seal(bytes, secret)
    }

    /// From sealed text.
    pub(super) fn open(text: &str, secret: &Secret) -> Result<Self, TicketError> {
        let payload = sealed::open(text, secret);
        payload.and_then(|payload| Ticket::read(&payload)).ok_or(TicketError::Forged)
    }

    fn read(payload: &[u8]) -> Option<Self> {
        let mut from = ByteReader(payload);
        let [KIND] = from.take()? else { return None };
        let mut ticket = Ticket {
            holder: u128::from_be_bytes(from.take()?),
            ttl: Nanos::new(u64::from_be_bytes(from.take()?)),
            permits: SmallVec::new(),
        };
        while !from.0.is_empty() {
            ticket.permits.push(TicketPermit {
                rule: RuleName::new(&from.take_name()?),
                subject: Fingerprint::new(u128::from_be_bytes(from.take()?)),
                location: match from.take()? {
                    [0] => PermitLocation::Store,
                    [1] => PermitLocation::Node,
                    _ => return None,
                },
            });
        }
        Some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::{Receipt, ReceiptKind};

    fn ticket() -> Ticket {
        let permit =
            |rule: &str, location| TicketPermit { rule: RuleName::new(rule), subject: Fingerprint::new(99), location };
        Ticket {
            holder: 42,
            ttl: Nanos::from_secs(10),
            permits: [permit("uploads", PermitLocation::Store), permit("a", PermitLocation::Node)]
                .into_iter()
                .collect(),
        }
    }

    #[test]
    fn a_sealed_ticket_can_be_opened_and_no_digit_can_be_changed_or_left_out() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let text = ticket().seal(&secret);
        assert_eq!(Ticket::open(&text, &secret), Ok(ticket()));
        for at in 0..text.len() {
            let mut altered = text.clone().into_bytes();
            altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
            let altered = String::from_utf8(altered).unwrap();
            for forged in [&*altered, &text[..at]] {
                assert_eq!(Ticket::open(forged, &secret), Err(TicketError::Forged));
            }
        }
    }

    #[test]
    fn a_ticket_is_no_receipt_and_invalid_text_is_neither() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let text = ticket().seal(&secret);
        for kind in [ReceiptKind::Charge, ReceiptKind::Reservation] {
            assert!(Receipt::open(&text, kind, &secret).is_err());
        }
        for text in ["", "0", "zz", "é", "00", &"0".repeat(300_000)] {
            assert_eq!(Ticket::open(text, &secret), Err(TicketError::Forged));
        }
    }
}
