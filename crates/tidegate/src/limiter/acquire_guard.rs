//! A request whose slots are being taken, and what becomes of them when nobody waits for the answer.
//!
//! Kept true: a slot is in the ticket from before its store is asked until it is known that there is
//! none. So whoever is told of a ticket that was left in the middle can free all that may be taken.

use smallvec::SmallVec;
use tidegate_core::engine::Decision;

use super::acquire::{Acquired, ConcurrencyUsage};
use super::ticket::{Ticket, TicketPermit};

/// Dropped before it has ended, it tells of the slots that may be taken.
pub(super) struct AcquireGuard<F: FnOnce(Ticket)> {
    ticket: Ticket,
    limits: SmallVec<[ConcurrencyUsage; 2]>,
    /// Who is told; nobody any more once it has ended.
    on_cancel: Option<F>,
}

impl<F: FnOnce(Ticket)> AcquireGuard<F> {
    pub(super) fn new(ticket: Ticket, on_cancel: F) -> Self {
        AcquireGuard {
            ticket,
            limits: SmallVec::new(),
            on_cancel: Some(on_cancel),
        }
    }

    /// All that may be taken by now.
    pub(super) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// A slot is asked for: from now on it may be taken.
    pub(super) fn add_permit(&mut self, permit: TicketPermit) {
        self.ticket.permits.push(permit);
    }

    /// What became of the slot that was asked for last.
    pub(super) fn record_reply(&mut self, limit: ConcurrencyUsage) {
        if !limit.granted {
            self.ticket.permits.pop();
        }
        self.limits.push(limit);
    }

    /// All slots are free again.
    pub(super) fn disarm(mut self) {
        self.on_cancel = None;
    }

    /// The request was decided.
    pub(super) fn finish(mut self, decision: Decision) -> Acquired {
        self.on_cancel = None;
        match decision.allowed() {
            true => Acquired::Open {
                permit: self.ticket.clone(),
                decision,
                limits: std::mem::take(&mut self.limits),
            },
            false => Acquired::Denied(decision),
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
