//! Requests that are open for a while: `/v1/acquire`, `/v1/renew` and `/v1/release`.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use tidegate::http::{BodyStyle, full, opened};
use tidegate::{Acquired, SlotError, Ticket, TicketError};
use tidegate_core::request::Edge;

use super::error::{Refusal, json_answer};
use super::serve::{decided, no_store};
use super::units;
use super::wire::{self, BadInput};
use crate::ids::Id;
use crate::net::connection::Answer;
use crate::service::Service;
use crate::store_log::log_unanswered;

/// Opens a request, or says who refuses.
pub(super) async fn acquire(
    service: &Arc<Service>,
    id: &Id,
    style: BodyStyle,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let asked = wire::acquire(body)?;
    units::check(service, &asked.request)?;
    let (lasts, receipt) = (asked.lasts, asked.receipt);
    let acquired = service.open(asked.request, lasts).await;
    let mut context = service.context(id, style);
    let asked_again = || wire::acquire(body).ok().map(|asked| asked.request);
    let told = match acquired.map_err(|error| unopened(&error))? {
        Acquired::Open {
            slot,
            decision,
            opened: limits,
        } => {
            let receipt = service.receipt(receipt, &decision);
            context.receipt = receipt.as_deref();
            let token = service.limiter.seal(&slot);
            opened(&decision, &limits, &token, lasts, &context)
        }
        Acquired::Refused(decision) => {
            service.log_denial(id, Edge::Http, &decision, asked_again);
            tidegate::http::answer(&decision, &context)
        }
        Acquired::Full(refused) => {
            service.log_full(id, Edge::Http, &refused);
            full(&refused, &context)
        }
    };
    Ok(decided(told))
}

/// Lets a request stay open.
pub(super) async fn renew(service: &Service, id: &Id, body: &[u8]) -> Result<Answer, Refusal> {
    let ticket = ticket(service, body)?;
    let held = service.limiter.renew(&ticket).await.map_err(no_store)?;
    let ttl_ms = ticket.lasts().millis_up();
    let told = json!({"id": id.as_str(), "held": held, "ttl_ms": ttl_ms});
    Ok(json_answer(StatusCode::OK, told.to_string().into(), id))
}

/// Ends a request. To end it twice is as good as once.
pub(super) async fn release(service: &Service, id: &Id, body: &[u8]) -> Result<Answer, Refusal> {
    let ticket = ticket(service, body)?;
    service.limiter.release(&ticket).await.map_err(no_store)?;
    let told = json!({"id": id.as_str(), "released": true});
    Ok(json_answer(StatusCode::OK, told.to_string().into(), id))
}

fn ticket(service: &Service, body: &[u8]) -> Result<Ticket, Refusal> {
    let text = wire::slot(body)?;
    service
        .limiter
        .unseal(&text)
        .map_err(|error| forged(&error))
}

fn forged(error: &TicketError) -> Refusal {
    let bad = BadInput {
        field: "slot".to_owned(),
        reason: error.to_string(),
    };
    bad.into()
}

fn unopened(error: &SlotError) -> Refusal {
    match error {
        SlotError::Ticket(error) => forged(error),
        SlotError::Store(error) => {
            log_unanswered(error);
            Refusal::Store
        }
        SlotError::NoRandomness(error) => {
            tracing::error!(%error, "no slot");
            Refusal::Internal
        }
    }
}
