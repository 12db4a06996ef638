//! Costs that are known only at the end: an estimate is reserved, and settled by what was used.
//!
//! The store remembers what is open; the text that a caller keeps says where. This node helps twice: it
//! gives back what was reserved here and nobody settled, at its end, and it sends a settlement again
//! that the store did not answer, which counts once (`tended` remembers both). If the node dies, the next
//! reservation of the same client brings back what it would have.

use tidegate_core::engine::{ChargedAs, Decision};
use tidegate_core::event::{Event, ReservationStep};
use tidegate_core::request::Request;
use tidegate_core::store::{Reserve, Settled, Store, StoreError};
use tidegate_core::units::Nanos;

use super::settlement_retries::PendingSettlement;
use super::{Limiter, LimiterView};
use crate::receipt::{Actual, MAX_UNIT_NAME_BYTES, MAX_UNITS, Receipt, ReceiptError, ReceiptKind};
use crate::resilience::join_all;

/// Settlements that are under way at once when reservations are tended.
const MAX_CONCURRENT_SETTLEMENTS: usize = 64;

/// The answer to a reservation.
#[must_use = "what is reserved should be settled; else it comes back only at its end"]
#[derive(Clone, Debug)]
pub struct Reservation {
    /// Why the request may pass or not.
    pub decision: Decision,
    /// What to settle it with, on any node; nothing if it may not pass.
    pub token: Option<String>,
    /// When the estimate comes back if nobody settles it, from now on.
    pub ttl: Nanos,
}

/// What became of a settlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// What is charged is what was used.
    Done,
    /// The estimate had come back before: what was used is charged now.
    Late,
    /// It was settled before, or the store has lost it; nothing changed.
    Already,
    /// It is too long ago, or every rule of it has changed since; nothing changed.
    Lapsed,
    /// The store does not answer. This node sends it again until it does.
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

/// Why something was not reserved or settled.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The token was altered, made up, or sealed with another secret.
    #[error("this is not a reservation of this deployment")]
    Forged,
    /// What was used is told in a unit that was not reserved. Nothing changed.
    #[error("nothing was reserved in this unit; name those of the reservation")]
    NotReserved {
        /// The unit.
        unit: String,
    },
    /// The store did not answer, and there is no room to send it again later. It may be settled again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store> Limiter<S> {
    /// Decides a request and reserves its cost, an estimate, until it is settled or `ttl` is over; at
    /// most an hour.
    ///
    /// # Errors
    /// When the store gave no answer or has no room to remember it, or there is no randomness for an id;
    /// and when it names more than 64 units, or one by more than 255 bytes, which no token can hold.
    pub async fn reserve(
        &self,
        request: Request<'_>,
        ttl: Nanos,
    ) -> Result<Reservation, StoreError> {
        self.view().reserve(request, ttl).await
    }

    /// Corrects what a reservation charged to what was used, once.
    ///
    /// # Errors
    /// When the token is not of this deployment, a unit was not reserved, or the store gave no answer and
    /// nobody can be told later.
    pub async fn settle(&self, token: &str, actual: &Actual) -> Result<Settlement, SettleError> {
        let receipt = Receipt::open(token, ReceiptKind::Reservation, &self.keys.load().secret);
        let receipt = receipt.map_err(|ReceiptError::Forged| SettleError::Forged)?;
        if let Some(unit) = receipt.unreserved_unit(actual) {
            let unit = unit.to_owned();
            return Err(SettleError::NotReserved { unit });
        }
        let settlement = match self.settle_receipt(&receipt, Some(actual)).await {
            // Too late to say what was used: the estimate is still to come back.
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
                    receipt,
                };
                match self.settlement_retries.insert(pending) {
                    true => Settlement::Waiting,
                    false => return Err(error.into()),
                }
            }
        };
        self.notify_observers(&Event::Reservation(settlement.step()));
        Ok(settlement)
    }

    async fn settle_receipt(
        &self,
        receipt: &Receipt,
        actual: Option<&Actual>,
    ) -> Result<Settlement, StoreError> {
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

    /// Gives back what was reserved here and not settled in time, and sends settlements again that the
    /// store did not answer. To be called every second or so. What gets no answer now waits for the next
    /// time, and nobody else waits for it: it may be of a part that is away.
    pub async fn retry_settlements(&self) {
        for batch in self
            .settlement_retries
            .due(self.clock.now())
            .chunks(MAX_CONCURRENT_SETTLEMENTS)
        {
            join_all(batch.iter().map(|duty| self.retry_settlement(duty))).await;
        }
    }

    async fn retry_settlement(&self, pending: &PendingSettlement) {
        let Ok(settlement) = self
            .settle_receipt(&pending.receipt, pending.actual.as_ref())
            .await
        else {
            return;
        };
        match (&pending.actual, settlement) {
            (Some(_), Settlement::Lapsed) => self
                .settlement_retries
                .revert_to_reservation(pending, self.clock.now()),
            _ => self.settlement_retries.complete(pending),
        }
        let step = match (&pending.actual, settlement) {
            (Some(_), settlement) => settlement.step(),
            (None, Settlement::Done) => ReservationStep::Returned,
            (None, _) => return, // settled on another node
        };
        self.notify_observers(&Event::Reservation(step));
    }
}

impl<S: Store> LimiterView<'_, S> {
    /// Decides a request and reserves its cost. See [`Limiter::reserve`].
    ///
    /// # Errors
    /// When the store gave no answer or has no room to remember it, or there is no randomness for an id.
    pub async fn reserve(
        &self,
        request: Request<'_>,
        ttl: Nanos,
    ) -> Result<Reservation, StoreError> {
        check_unit_names(&request)?;
        let mut request = request;
        self.identify(&mut request);
        let ttl = ttl.clamp(Nanos::from_millis(1), Reserve::MAX_TTL);
        let plan = self.plan(&request);
        let id = (self.limiter.new_id)().map_err(no_randomness)?;
        let decision = match plan.listed {
            Some(listed) => self.decision_by_list(listed, plan.client_hash),
            None => {
                let set = plan.set.clone();
                let reserve = Reserve { id, ttl, set };
                let outcome = self.limiter.store.reserve(&reserve).await?;
                self.decision_of(&plan, &outcome, ChargedAs::Reservation)
            }
        };
        self.notify_decided(&request, &decision);
        let token = decision
            .allowed()
            .then(|| self.reservation_token(&request, &decision, id, ttl));
        Ok(Reservation {
            decision,
            token,
            ttl,
        })
    }

    /// The token of a reservation that was admitted, which this node looks after from now on.
    fn reservation_token(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        id: u128,
        ttl: Nanos,
    ) -> String {
        let limiter = self.limiter;
        let receipt = Receipt::of_reservation(decision, id, ttl, units(request, decision));
        let token = receipt.seal(&limiter.keys.load().secret);
        let due = limiter.clock.now().plus(ttl);
        if !receipt.is_empty() {
            // If there is no room, the next reservation of the client brings it back.
            limiter.settlement_retries.insert(PendingSettlement {
                receipt,
                due,
                expires_at: due.plus(Reserve::MAX_TTL),
                actual: None,
            });
        }
        limiter.notify_observers(&Event::Reservation(ReservationStep::Reserved));
        token
    }
}

/// The units that can be settled: those that the request names, and those that rules charged because it
/// did not.
fn units<'d>(request: &'d Request<'_>, decision: &'d Decision) -> impl Iterator<Item = &'d str> {
    let named = request.costs.iter().map(|(unit, _)| unit.as_ref());
    let mut charged: Vec<&str> = decision.limits().filter_map(|l| l.rule.unit()).collect();
    charged.sort_unstable();
    charged.dedup();
    charged.retain(|unit| !request.costs.iter().any(|(named, _)| named == unit));
    named.chain(charged).take(MAX_UNITS)
}

/// What cannot be settled must not be charged.
fn check_unit_names(request: &Request<'_>) -> Result<(), StoreError> {
    let mut units = request.costs.iter().map(|(unit, _)| unit.len());
    let reason = if request.costs.len() > MAX_UNITS {
        format!("a reservation names at most {MAX_UNITS} units")
    } else if units.any(|bytes| bytes > MAX_UNIT_NAME_BYTES) {
        format!("a unit has a name of at most {MAX_UNIT_NAME_BYTES} bytes")
    } else {
        return Ok(());
    };
    Err(StoreError::Rejected {
        command: "reserve",
        source: reason.into(),
    })
}

pub(super) fn no_randomness(error: getrandom::Error) -> StoreError {
    StoreError::Unavailable {
        waited: Nanos::ZERO,
        source: Box::new(error),
    }
}
