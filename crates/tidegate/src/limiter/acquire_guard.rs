//! The guard of a request whose permits are being acquired. It handles cancellation.
//!
//! Invariant: a permit is in the ticket from before its store is called until the store has denied it. So
//! `on_cancel`, which receives the ticket of a cancelled call, can release every permit that may be held.

use smallvec::SmallVec;
use tidegate_rules::engine::Decision;

use super::acquire::{Acquired, ConcurrencyUsage};
use super::ticket::Ticket;

/// Dropped before it is finished or disarmed, it passes the permits that may be held to `on_cancel`.
pub(super) struct AcquireGuard<F: FnOnce(Ticket)> {
    /// All permits that may be held by now.
    pub(super) ticket: Ticket,
    limits: SmallVec<[ConcurrencyUsage; 2]>,
    /// `None` once the call has ended.
    on_cancel: Option<F>,
}

impl<F: FnOnce(Ticket)> AcquireGuard<F> {
    pub(super) fn new(ticket: Ticket, on_cancel: F) -> Self {
        AcquireGuard { ticket, limits: SmallVec::new(), on_cancel: Some(on_cancel) }
    }

    /// Records the reply for the permit that was added last.
    pub(super) fn record_reply(&mut self, limit: ConcurrencyUsage) {
        if !limit.granted {
            self.ticket.permits.pop();
        }
        self.limits.push(limit);
    }

    /// All permits have been released.
    pub(super) fn disarm(mut self) {
        self.on_cancel = None;
    }

    /// The request was decided.
    pub(super) fn finish(mut self, decision: Decision) -> Acquired {
        self.on_cancel = None;
        if decision.allowed() {
            Acquired::Open { permit: self.ticket.clone(), decision, limits: std::mem::take(&mut self.limits) }
        } else {
            Acquired::Denied(decision)
        }
    }
}

impl<F: FnOnce(Ticket)> Drop for AcquireGuard<F> {
    fn drop(&mut self) {
        if let Some(on_cancel) = self.on_cancel.take()
            && !self.ticket.permits.is_empty()
        {
            on_cancel(self.ticket.clone());
        }
    }
}
