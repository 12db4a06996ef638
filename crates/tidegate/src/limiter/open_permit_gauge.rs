//! The number of open permits of each rule, as far as this node knows: a figure for people, which decides nothing.
//!
//! A permit counts from its acquire or renewal here until its release here. Counts are kept per rule, so that
//! reading them costs a step per rule, not one per permit. Tickets beyond a bound are not counted.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use super::ticket::Ticket;
use crate::permit_set::PermitSet;

/// Maximum of counted tickets: enough for a node with many callers, and a few dozen megabytes.
pub const MAX_COUNTED_TICKETS: usize = 250_000;
/// Approximate memory of one ticket.
const TICKET_BYTES: u64 = 256;
/// Expired tickets that are dropped under one lock.
const CHUNK: usize = 256;

/// The open tickets.
#[derive(Debug)]
pub(super) struct OpenPermitGauge {
    max: usize,
    table: Mutex<OpenTickets>,
}

/// The permits of a ticket: rule, and counter of rule and subject.
type TicketPermits = SmallVec<[(RuleName, u128); 1]>;

#[derive(Debug, Default)]
struct OpenTickets {
    open: PermitSet<TicketPermits>,
    /// Rule and subject, then holder.
    holders: BTreeSet<(u128, u128)>,
    counts: BTreeMap<String, u64>,
}

impl Default for OpenPermitGauge {
    fn default() -> Self {
        OpenPermitGauge { max: MAX_COUNTED_TICKETS, table: Mutex::default() }
    }
}

impl OpenPermitGauge {
    /// A gauge that takes about `bytes` at most.
    pub(super) fn with_memory_cap(bytes: u64) -> Self {
        let max = usize::try_from(bytes / TICKET_BYTES).unwrap_or(MAX_COUNTED_TICKETS);
        OpenPermitGauge { max: max.min(MAX_COUNTED_TICKETS), ..OpenPermitGauge::default() }
    }

    pub(super) fn record_open(&self, ticket: &Ticket, now: Nanos, until: Nanos) {
        if ticket.permits.is_empty() {
            return;
        }
        let table = &mut *self.table.lock();
        // A call adds one ticket and drops up to four, so that tickets that are never released make room.
        table.drop_ended(now, 4);
        let entries = ticket.permits.iter();
        let permits = entries.map(|entry| (entry.rule.clone(), entry.rule.counter(entry.subject, 0)));
        let known = table.open.get(ticket.holder).is_some();
        if known {
            table.remove(ticket.holder);
        }
        if known || table.open.len() < self.max {
            table.insert(ticket.holder, until, permits.collect());
        }
    }

    /// A ticket was released, or is lost.
    pub(super) fn record_closed(&self, ticket: &Ticket) {
        self.table.lock().remove(ticket.holder);
    }

    /// The permits of a rule and subject were released, whatever their holders.
    pub(super) fn forget(&self, rule: &RuleName, subject: Fingerprint) {
        let counter = rule.counter(subject, 0);
        let table = &mut *self.table.lock();
        let of_subject = (counter, 0)..=(counter, u128::MAX);
        let holders: Vec<u128> = table.holders.range(of_subject).map(|(_, holder)| *holder).collect();
        for holder in holders {
            let until = table.open.get(holder).map(|(until, _)| until);
            let Some((until, mut permits)) = until.zip(table.remove(holder)) else {
                continue;
            };
            permits.retain(|(_, of)| *of != counter);
            if !permits.is_empty() {
                table.insert(holder, until, permits);
            }
        }
    }

    /// How many permits of each rule are open.
    pub(super) fn by_rule(&self, now: Nanos) -> BTreeMap<String, u64> {
        // Every acquire takes this lock: it is held for a few tickets at a time.
        while self.table.lock().drop_ended(now, CHUNK) == CHUNK {}
        self.table.lock().counts.clone()
    }
}

impl OpenTickets {
    fn insert(&mut self, holder: u128, until: Nanos, permits: TicketPermits) {
        for (rule, counter) in &permits {
            self.holders.insert((*counter, holder));
            match self.counts.get_mut(rule.as_str()) {
                Some(count) => *count += 1,
                None => _ = self.counts.insert(rule.as_str().to_owned(), 1),
            }
        }
        self.open.put(holder, until, permits);
    }

    fn remove(&mut self, holder: u128) -> Option<TicketPermits> {
        let permits = self.open.remove(holder)?;
        self.uncount(holder, &permits);
        Some(permits)
    }

    fn uncount(&mut self, holder: u128, permits: &TicketPermits) {
        for (rule, counter) in permits {
            self.holders.remove(&(*counter, holder));
            if let Some(count) = self.counts.get_mut(rule.as_str()) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(rule.as_str());
                }
            }
        }
    }

    /// Drops up to `max` expired tickets. Returns how many.
    fn drop_ended(&mut self, now: Nanos, max: usize) -> usize {
        for dropped in 0..max {
            let Some((holder, permits)) = self.open.pop_ended(now) else {
                return dropped;
            };
            self.uncount(holder, &permits);
        }
        max
    }
}

#[cfg(test)]
mod tests {
    use super::super::ticket::{PermitLocation, TicketPermit};
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    fn ticket(holder: u128, permits: &[(&str, u128)]) -> Ticket {
        let entries = permits.iter().map(|(rule, subject)| TicketPermit {
            rule: RuleName::new(rule),
            subject: Fingerprint::new(*subject),
            location: PermitLocation::Store,
        });
        Ticket { holder, ttl: AT(10), permits: entries.collect() }
    }

    fn counts(gauge: &OpenPermitGauge, now: u64) -> Vec<(String, u64)> {
        gauge.by_rule(AT(now)).into_iter().collect()
    }

    fn count(rule: &str, open: u64) -> (String, u64) {
        (rule.to_owned(), open)
    }

    #[test]
    fn counts_follow_opening_renewal_closing_expiry_and_reset() {
        let gauge = OpenPermitGauge::default();
        gauge.record_open(&ticket(1, &[("a", 7), ("b", 8)]), AT(0), AT(10));
        gauge.record_open(&ticket(2, &[("a", 7)]), AT(0), AT(10));
        gauge.record_open(&ticket(3, &[("a", 9)]), AT(0), AT(10));
        gauge.record_open(&ticket(2, &[("a", 7)]), AT(5), AT(15));
        assert_eq!(counts(&gauge, 5), [count("a", 3), count("b", 1)]);
        gauge.forget(&RuleName::new("a"), Fingerprint::new(7));
        assert_eq!(counts(&gauge, 5), [count("a", 1), count("b", 1)]);
        gauge.record_closed(&ticket(1, &[]));
        gauge.record_closed(&ticket(1, &[]));
        assert_eq!(counts(&gauge, 5), [count("a", 1)]);
        assert_eq!(counts(&gauge, 10), []);
        assert!(gauge.table.lock().holders.is_empty());
    }

    /// All permits were walked once a second under the lock that every acquire takes.
    #[test]
    fn the_lock_is_taken_for_a_few_at_a_time() {
        let gauge = OpenPermitGauge::default();
        for holder in 0..1_000 {
            gauge.record_open(&ticket(holder, &[("a", holder)]), AT(0), AT(10));
        }
        assert_eq!(gauge.table.lock().drop_ended(AT(9), CHUNK), 0);
        assert_eq!(gauge.table.lock().drop_ended(AT(10), CHUNK), CHUNK);
        assert_eq!(gauge.table.lock().counts["a"], 1_000 - CHUNK as u64);
        assert_eq!(counts(&gauge, 10), []);
    }

    #[test]
    fn a_small_gauge_counts_fewer() {
        let gauge = OpenPermitGauge::with_memory_cap(10 * TICKET_BYTES);
        for holder in 0..100 {
            gauge.record_open(&ticket(holder, &[("a", holder)]), AT(0), AT(10));
        }
        assert_eq!(counts(&gauge, 0), [count("a", 10)]);
    }
}
