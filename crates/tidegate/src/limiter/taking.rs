//! A request whose slots are being taken, and what becomes of them when nobody waits for the answer.
//!
//! Kept true: a slot is in the ticket from before its store is asked until it is known that there is
//! none. So whoever is told of a ticket that was left in the middle can free all that may be taken.

use smallvec::SmallVec;
use tidegate_core::engine::Decision;

use super::acquire::{Acquired, Opened};
use super::ticket::{Entry, Ticket};

/// Dropped before it has ended, it tells of the slots that may be taken.
pub(super) struct Taking<F: FnOnce(Ticket)> {
    ticket: Ticket,
    opened: SmallVec<[Opened; 2]>,
    /// Who is told; nobody any more once it has ended.
    left: Option<F>,
}

impl<F: FnOnce(Ticket)> Taking<F> {
    pub(super) fn new(ticket: Ticket, left: F) -> Self {
        Taking {
            ticket,
            opened: SmallVec::new(),
            left: Some(left),
        }
    }

    /// All that may be taken by now.
    pub(super) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// A slot is asked for: from now on it may be taken.
    pub(super) fn asks(&mut self, entry: Entry) {
        self.ticket.entries.push(entry);
    }

    /// What became of the slot that was asked for last.
    pub(super) fn answered(&mut self, opened: Opened) {
        if !opened.granted {
            self.ticket.entries.pop();
        }
        self.opened.push(opened);
    }

    /// All slots are free again.
    pub(super) fn given_up(mut self) {
        self.left = None;
    }

    /// The request was decided.
    pub(super) fn ended(mut self, decision: Decision) -> Acquired {
        self.left = None;
        match decision.allowed() {
            true => Acquired::Open {
                slot: self.ticket.clone(),
                decision,
                opened: std::mem::take(&mut self.opened),
            },
            false => Acquired::Refused(decision),
        }
    }
}

impl<F: FnOnce(Ticket)> Drop for Taking<F> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take()
            && !self.ticket.entries.is_empty()
        {
            left(self.ticket.clone());
        }
    }
}
