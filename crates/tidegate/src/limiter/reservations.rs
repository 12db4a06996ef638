//! Reservations: an estimated cost is charged now, and settled later by the actual cost.
//!
//! The store remembers open reservations; the token that a caller keeps identifies one. This node helps in two
//! ways (`settlement_retries` remembers both). It refunds an estimate reserved here that is not settled before its
//! end. It retries a settlement that the store did not reply to, which counts once. If the node dies, the next
//! reservation of the same client refunds what the node would have refunded.

use std::time::Duration;

use tidegate_core::store::{Reserve, Settled, Store, StoreError};
use tidegate_core::units::Nanos;
use tidegate_rules::engine::Decision;
use tidegate_rules::event::{Event, ReservationStep};
use tidegate_rules::request::Request;

use super::settlement_retries::PendingSettlement;
use super::view::Operation;
use super::{Limiter, LimiterView};
use crate::receipt::{Actual, MAX_UNIT_NAME_BYTES, MAX_UNITS, Receipt, ReceiptError, ReceiptKind};
use crate::runtime::join_all;

/// Settlements in flight at once in [`Limiter::retry_settlements`].
const MAX_CONCURRENT_SETTLEMENTS: usize = 64;

/// The result of a reservation.
#[must_use = "a reservation should be settled; otherwise its estimate is refunded only when it ends"]
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Reservation {
    /// Why the request is allowed or denied.
    pub decision: Decision,
    /// The token that settles it, on any node; `None` if the request is denied.
    pub token: Option<String>,
    /// How long from now an unsettled estimate stays charged before it is refunded.
    pub ttl: Duration,
}

/// The result of a settlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Settlement {
    /// The actual cost is charged instead of the estimate.
    Done,
    /// The estimate had been refunded before; the actual cost is charged now.
    Late,
    /// It was settled before, or the store has lost it; nothing changed.
    Already,
    /// The reservation is too old, or every rule of it has changed since; nothing changed.
    Lapsed,
    /// The store gives no reply. This node retries until it does.
    Waiting,
}

impl Settlement {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Settlement::Done => "done",
            Settlement::Late => "late",
            Settlement::Already => "already",
            Settlement::Lapsed => "lapsed",
            Settlement::Waiting => "waiting",
        }
    }

    const fn step(self) -> ReservationStep {
        match self {
            Settlement::Done => ReservationStep::Settled,
            Settlement::Late => ReservationStep::Late,
            Settlement::Already => ReservationStep::Already,
            Settlement::Lapsed => ReservationStep::Lapsed,
            Settlement::Waiting => ReservationStep::Waiting,
        }
    }
}

impl From<Settled> for Settlement {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Done => Settlement::Done,
            Settled::Late => Settlement::Late,
            Settled::Already => Settlement::Already,
            Settled::Lapsed => Settlement::Lapsed,
        }
    }
}

/// Why a reservation was not settled.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum SettleError {
    /// The token was altered, made up, or sealed with another secret.
    #[error("this is not a reservation of this deployment")]
    Forged,
    /// The actual cost names a unit that was not reserved. Nothing changed.
    #[error("nothing was reserved in this unit; name those of the reservation")]
    NotReserved {
        /// The unit.
        unit: String,
    },
    /// The store did not reply, and there is no room to retry later. The caller may settle again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store> Limiter<S> {
    /// Decides a request and reserves its estimated cost until it is settled or `ttl` has passed, at most an
    /// hour. Dropped before it has finished, the call may have charged the estimate, which the next reservation of the
    /// client refunds once it has ended.
    ///
    /// # Errors
    /// When the store gives no reply or has no room for the reservation, or there is no randomness for an id;
    /// and when the request names more than 64 units, or a unit of more than 255 bytes, which no token can hold.
    pub async fn reserve(&self, request: Request<'_>, ttl: Duration) -> Result<Reservation, StoreError> {
        self.view().reserve(request, ttl).await
    }

    /// Replaces the estimate of a reservation by the actual cost, once. Cancel-safe: dropped before it has finished, the
    /// call may have settled; it may be repeated.
    ///
    /// # Errors
    /// When the token is not of this deployment, a unit was not reserved, or the store gives no reply and
    /// there is no room to retry later.
    pub async fn settle(&self, token: &str, actual: &Actual) -> Result<Settlement, SettleError> {
        let receipt = Receipt::open(token, ReceiptKind::Reservation, &self.keys.load().secret);
        let receipt = receipt.map_err(|ReceiptError::Forged| SettleError::Forged)?;
        if let Some(unit) = receipt.unreserved_unit(actual) {
            let unit = unit.to_owned();
            return Err(SettleError::NotReserved { unit });
        }
        let settlement = match self.settle_receipt(&receipt, Some(actual)).await {
            // Too late for the actual cost: the estimate is still to be refunded.
            Ok(Settlement::Lapsed) => Settlement::Lapsed,
            Ok(settlement) => {
                self.settlement_retries.forget(receipt.id());
                settlement
            }
            Err(error) => {
                let now = self.clock.now();
                let pending = PendingSettlement {
                    due: now,
                    expires_at: now.plus(receipt.ttl()).plus(receipt.ttl()),
                    actual: Some(actual.clone()),
                    receipt: receipt.pack(),
                };
                if !self.settlement_retries.insert(pending) {
                    return Err(error.into());
                }
                Settlement::Waiting
            }
        };
        self.notify_observers(&Event::Reservation(settlement.step()));
        Ok(settlement)
    }

    async fn settle_receipt(&self, receipt: &Receipt, actual: Option<&Actual>) -> Result<Settlement, StoreError> {
        if receipt.is_empty() {
            return Ok(Settlement::Done);
        }
        let policy = self.policy.get();
        let settle = receipt.settle(&policy.rules, actual);
        if settle.set.charges.is_empty() {
            return Ok(Settlement::Lapsed); // every rule of it has changed since
        }
        Ok(self.store.settle(&settle).await?.into())
    }

    async fn retry_settlement(&self, pending: &PendingSettlement) {
        let Ok(settlement) = self.settle_receipt(&pending.receipt.unpack(), pending.actual.as_ref()).await else {
            return;
        };
        match (&pending.actual, settlement) {
            (Some(_), Settlement::Lapsed) => self.settlement_retries.revert_to_reservation(pending, self.clock.now()),
            _ => self.settlement_retries.complete(pending),
        }
        let step = match (&pending.actual, settlement) {
            (Some(_), settlement) => settlement.step(),
            (None, Settlement::Done) => ReservationStep::Refunded,
            (None, _) => return, // settled on another node
        };
        self.notify_observers(&Event::Reservation(step));
    }
}

/// Not public: [`Limiter::spawn_background`] calls it, and the tests.
#[cfg_attr(not(feature = "internals"), doc(hidden))]
impl<S: Store> Limiter<S> {
    /// Refunds estimates reserved here that were not settled in time, and retries settlements that the store did
    /// not reply to. Call it about every second. An entry without a reply waits for the next call and holds up no
    /// other entry: its shard may be unavailable. Cancel-safe: what was not retried is due at the next call.
    /// [`Limiter::spawn_background`] calls this.
    pub async fn retry_settlements(&self) {
        for batch in self.settlement_retries.due(self.clock.now()).chunks(MAX_CONCURRENT_SETTLEMENTS) {
            join_all(batch.iter().map(|pending| self.retry_settlement(pending))).await;
        }
    }
}

impl<S: Store> LimiterView<'_, S> {
    async fn reserve(&self, request: Request<'_>, ttl: Duration) -> Result<Reservation, StoreError> {
        check_unit_names(&request)?;
        let mut request = request;
        let ttl = Nanos::from(ttl).clamp(Nanos::from_millis(1), Reserve::MAX_TTL);
        let id = (self.limiter.new_id)().map_err(no_randomness)?;
        let decision = self.decide(&mut request, Operation::Reserve { id, ttl }).await?;
        let token = decision.allowed().then(|| self.reservation_token(&request, &decision, id, ttl));
        Ok(Reservation { decision, token, ttl: ttl.duration() })
    }

    /// Seals the token of an admitted reservation, which this node tracks from now on.
    fn reservation_token(&self, request: &Request<'_>, decision: &Decision, id: u128, ttl: Nanos) -> String {
        let limiter = self.limiter;
        let receipt = Receipt::of_reservation(decision, id, ttl, units(request, decision));
        let token = receipt.seal(&self.keys.secret);
        let due = limiter.clock.now().plus(ttl);
        if !receipt.is_empty() {
            // Without room here, the next reservation of the client refunds the estimate.
            limiter.settlement_retries.insert(PendingSettlement {
                receipt: receipt.pack(),
                due,
                expires_at: due.plus(Reserve::MAX_TTL),
                actual: None,
            });
        }
        limiter.notify_observers(&Event::Reservation(ReservationStep::Reserved));
        token
    }
}

/// The units that can be settled: those that the request names, and those that rules charged although the
/// request does not name them.
fn units<'d>(request: &'d Request<'_>, decision: &'d Decision) -> impl Iterator<Item = &'d str> {
    let named = request.costs.iter().map(|(unit, _)| unit.as_ref());
    let mut charged: Vec<&str> = decision.limits().filter_map(|l| l.rule.unit()).collect();
    charged.sort_unstable();
    charged.dedup();
    charged.retain(|unit| !request.costs.iter().any(|(named, _)| named == unit));
    named.chain(charged).take(MAX_UNITS)
}

/// Rejects requests whose cost could not be settled: it must not be charged.
fn check_unit_names(request: &Request<'_>) -> Result<(), StoreError> {
    let mut units = request.costs.iter().map(|(unit, _)| unit.len());
    let reason = if request.costs.len() > MAX_UNITS {
        format!("a reservation names at most {MAX_UNITS} units")
    } else if units.any(|bytes| bytes > MAX_UNIT_NAME_BYTES) {
        format!("a unit has a name of at most {MAX_UNIT_NAME_BYTES} bytes")
    } else {
        return Ok(());
    };
    Err(StoreError::Rejected { command: "reserve", source: reason.into() })
}

pub(super) fn no_randomness(error: getrandom::Error) -> StoreError {
    StoreError::Unavailable { waited: Nanos::ZERO, source: Box::new(error) }
}
