//! How many slots of each rule are open as far as this node has heard: a figure for people, which
//! decides nothing.
//!
//! Counted are those that were taken or renewed here and not given back here. Beyond a bound new ones
//! are not counted.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::sweep::Sweep;
use tidegate_core::units::Nanos;

use super::ticket::Ticket;

/// Tickets that are counted: what a node of many callers has open, and a few dozen megabytes.
pub const MOST_COUNTED: usize = 250_000;

/// The open tickets.
#[derive(Debug, Default)]
pub(super) struct Register(Mutex<Table>);

/// Of which rule and whose the slots of a ticket are.
type Slots = SmallVec<[(RuleName, Fingerprint); 1]>;

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<u128, (Nanos, Slots)>,
    /// When those that have ended are looked for.
    sweep: Sweep,
}

impl Register {
    /// A ticket is open until `until`.
    pub(super) fn opened(&self, ticket: &Ticket, now: Nanos, until: Nanos) {
        if ticket.entries.is_empty() {
            return;
        }
        let Table { open, sweep } = &mut *self.0.lock();
        if let Some((known, _)) = open.get_mut(&ticket.holder) {
            *known = until;
            sweep.note(until);
            return;
        }
        if sweep.due(open.len(), MOST_COUNTED, now) {
            open.retain(|_, (until, _)| *until > now);
            sweep.done(open.values().map(|(until, _)| *until), now);
        }
        if open.len() < MOST_COUNTED {
            let entries = ticket.entries.iter();
            let slots = entries.map(|entry| (entry.rule.clone(), entry.subject));
            open.insert(ticket.holder, (until, slots.collect()));
            sweep.note(until);
        }
    }

    /// A ticket was given back, or is lost.
    pub(super) fn closed(&self, ticket: &Ticket) {
        self.0.lock().open.remove(&ticket.holder);
    }

    /// The slots of a rule and subject were freed, whoever held them.
    pub(super) fn forget(&self, rule: &RuleName, subject: Fingerprint) {
        self.0.lock().open.retain(|_, (_, slots)| {
            slots.retain(|(of, whose)| !(of == rule && *whose == subject));
            !slots.is_empty()
        });
    }

    /// How many slots of each rule are open.
    pub(super) fn by_rule(&self, now: Nanos) -> BTreeMap<String, u64> {
        let table = self.0.lock();
        // Under the lock that every acquire takes: a name is copied for each rule, not for each slot.
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let open = table.open.values().filter(|(until, _)| *until > now);
        for (rule, _) in open.flat_map(|(_, slots)| slots) {
            *counts.entry(rule.as_str()).or_default() += 1;
        }
        let counts = counts.into_iter();
        counts.map(|(rule, open)| (rule.to_owned(), open)).collect()
    }
}
