//! Metrics of the store: the size of a memory store, or the health of a shared one.

use std::collections::BTreeMap;

use tidegate_core::store::FailureKind;

use super::exposition::{Exposition, MetricKind, expose};
use super::series::{Counter, Gauge};
use crate::ahead::{LeaseStats, Overshoot};
use crate::resilience::{ClockEvent, ClockReading, FailureCounts, StoreEvent};

/// The figures of a store at the time the page is written.
#[derive(Debug)]
pub enum StoreFacts<'a> {
    /// A memory store.
    Memory(MemoryFacts),
    /// A shared store.
    Shared {
        /// Counted events.
        series: &'a SharedSeries,
        /// Failures by kind.
        failures: &'a FailureCounts,
        /// The state of its clock, once it has replied.
        clock: Option<ClockReading>,
        /// Whether replicas make charges as durable as rules require.
        durability: DurabilityState,
        /// Leased units.
        leases: LeaseStats,
        /// The units by which each lenient rule may be exceeded.
        overshoot: BTreeMap<Box<str>, Overshoot>,
    },
}

impl StoreFacts<'_> {
    pub(super) fn expose(&self, page: &mut Exposition) {
        match self {
            StoreFacts::Memory(facts) => {
                expose_memory(page, facts);
                if let Some(journal) = &facts.journal {
                    expose_journal(page, journal);
                    expose_durability(page, "disk", journal.durability());
                }
            }
            StoreFacts::Shared { series, failures, clock, durability, leases, overshoot } => {
                series.expose(page);
                expose_durability(page, "replica", *durability);
                expose_failures(page, failures);
                expose_clock(page, clock.as_ref());
                expose_leases(page, leases);
                expose_overshoot(page, overshoot);
            }
        }
    }
}

/// Whether the requirement of rules with `durability` is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurabilityState {
    /// It is met, or no rule has one.
    Satisfied,
    /// It is not met: such rules are decided as without the store.
    Failing,
}

/// The figures of a memory store.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFacts {
    /// The number of counters.
    pub keys: u64,
    /// Memory of the counters.
    pub bytes: u64,
    /// Maximum memory of the counters.
    pub cap_bytes: u64,
    /// Charges that had to share a counter because the store was full.
    pub overflowed: u64,
    /// Counters evicted because they had expired.
    pub swept: u64,
    /// Counters converted to a limit with other parameters.
    pub converted: u64,
    /// Counters found ahead of the clock: it was set back.
    pub clock_steps: u64,
    /// Its journal on disk, if it has one.
    pub journal: Option<JournalFacts>,
}

/// The figures of the journal of durable counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalFacts {
    /// Writes that are on the disk.
    pub commits: u64,
    /// Counters in them.
    pub written: u64,
    /// Decisions whose counts could not be written in time.
    pub lost: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
}

impl JournalFacts {
    fn durability(&self) -> DurabilityState {
        if self.failing { DurabilityState::Failing } else { DurabilityState::Satisfied }
    }
}

/// Events of a node with its shared store.
#[derive(Debug, Default)]
pub struct SharedSeries {
    open: Gauge,
    opened: Counter,
    exact: Gauge,
    unserved: Gauge,
    epoch_changes: Counter,
    restored: Counter,
    trusted_early: Counter,
    written_back: Counter,
    unconfirmed: Counter,
    dropped: Counter,
    mirror_evicted: Counter,
    clock_jumps: Counter,
}

impl SharedSeries {
    /// Units that the store will never count.
    pub fn pending_dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Counters that this node has forgotten before they had drained.
    pub fn mirror_evicted(&self) -> u64 {
        self.mirror_evicted.get()
    }

    /// Counts an event.
    pub fn record(&self, event: &StoreEvent) {
        match event {
            StoreEvent::BreakerOpened { .. } => {
                self.open.set(1);
                self.opened.inc();
            }
            StoreEvent::BreakerClosed => self.open.set(0),
            StoreEvent::CountsLost => {
                self.exact.set(0);
                self.epoch_changes.inc();
            }
            StoreEvent::Restored { counters, .. } => self.restored.add(*counters as u64),
            StoreEvent::TrustedEarly { .. } => self.trusted_early.inc(),
            StoreEvent::Exact => self.exact.set(1),
            StoreEvent::WrittenBack { units, .. } | StoreEvent::LateWrittenBack { units } => {
                self.written_back.add(*units)
            }
            StoreEvent::Unconfirmed { units } => self.unconfirmed.add(*units),
            StoreEvent::PendingDropped { units } => self.dropped.add(*units),
            StoreEvent::MirrorEvicted { counters } => self.mirror_evicted.add(*counters),
            StoreEvent::Clock(ClockEvent::Jumped { .. }) => self.clock_jumps.inc(),
            // Counted as a failure of its kind.
            StoreEvent::RecordRejected { .. } => {}
            StoreEvent::Clock(ClockEvent::Level { .. }) => {} // read when the page is written
        }
    }

    /// Whether the breaker is open.
    pub fn is_open(&self) -> bool {
        self.open.get() == 1
    }

    /// Sets whether some counters have no server.
    pub fn set_unserved(&self, unserved: bool) {
        self.unserved.set(u64::from(unserved));
    }

    /// Whether the store is considered to hold every count.
    pub fn is_exact(&self) -> bool {
        self.exact.get() == 1 && self.unserved.get() == 0
    }

    fn expose(&self, page: &mut Exposition) {
        expose! { page;
            gauge "tidegate_store_breaker_open" = self.open.get(); "1 while the store is not called because it failed."
            counter "tidegate_store_breaker_opened_total" = self.opened.get(); "How often the breaker opened."
            gauge "tidegate_store_exact" = u64::from(self.is_exact() && !self.is_open());
                "1 while the store replies and is considered to hold every count."
            counter "tidegate_store_epoch_changes_total" = self.epoch_changes.get();
                "How often the store was found to have lost counts."
            counter "tidegate_store_seeded_total" = self.restored.get();
                "Counters that this node restored in a store that had lost them."
            counter "tidegate_store_trusted_early_total" = self.trusted_early.get();
                "How often the store was trusted again before every node had restored its counters."
            counter "tidegate_store_reconciled_units_total" = self.written_back.get();
                "Units admitted without the store and charged to it afterwards."
            counter "tidegate_store_unconfirmed_units_total" = self.unconfirmed.get();
                "Units of charges whose reply was late, lost or an error; the store may count them twice."
            counter "tidegate_store_mirror_evicted_total" = self.mirror_evicted.get();
                "Counters in use that this node forgot because there are too many; it cannot restore them after a loss."
            counter "tidegate_store_pending_dropped_units_total" = self.dropped.get();
                "Units admitted without the store that it will never count: the table of pending charges was full."
            counter "tidegate_store_clock_jumps_total" = self.clock_jumps.get();
                "How often the store's clock or this node's was set, or another store took over."
        }
    }
}

/// Every kind is shown from the start: the first error of a kind is then an increase.
fn expose_failures(page: &mut Exposition, failures: &FailureCounts) {
    page.family(
        "tidegate_store_errors_total",
        MetricKind::Counter,
        "Calls, pings and attempts to join the store that failed, by the kind of the failure.",
    );
    for kind in FailureKind::ALL {
        page.sample(&[("kind", kind.name())], failures.of(kind));
    }
}

/// Shows nothing before the store has replied: a zero would mean that the clocks agree.
fn expose_clock(page: &mut Exposition, clock: Option<&ClockReading>) {
    let Some(clock) = clock else { return };
    expose! { page;
        gauge "tidegate_store_clock_offset_seconds" = clock.offset.nanos as f64 / 1e9;
            "How far the store's clock is ahead of this node's; negative: behind."
        gauge "tidegate_store_clock_level" = clock.level as u8; "The level of that offset: 0 fine, 1 warning, 2 alarm."
    }
}

fn expose_memory(page: &mut Exposition, store: &MemoryFacts) {
    expose! { page;
        gauge "tidegate_store_keys" = store.keys; "Counters in the store."
        gauge "tidegate_store_bytes" = store.bytes; "Memory the counters take."
        gauge "tidegate_store_cap_bytes" = store.cap_bytes; "Maximum memory of the counters."
        counter "tidegate_store_overflow_total" = store.overflowed;
            "Charges that shared a counter because the store was full."
        counter "tidegate_store_swept_total" = store.swept; "Counters evicted because they had expired."
        counter "tidegate_store_converted_total" = store.converted;
            "Counters converted to a limit with other parameters."
        counter "tidegate_store_clock_steps_total" = store.clock_steps;
            "Counters found ahead of the clock, which must have been set back."
    }
}

/// One series for every store that can be durable, so that one alert serves all of them.
fn expose_durability(page: &mut Exposition, kind: &str, state: DurabilityState) {
    page.family(
        "tidegate_durability_failing",
        MetricKind::Gauge,
        "1 while counts cannot be made as durable as rules with `durability` require; those rules are decided as \
         without the store.",
    );
    let failing = u64::from(state == DurabilityState::Failing);
    page.sample(&[("kind", kind)], failing);
}

fn expose_journal(page: &mut Exposition, journal: &JournalFacts) {
    expose! { page;
        gauge "tidegate_journal_failing" = u64::from(journal.failing);
            "1 while durable counts cannot be written to the disk."
        counter "tidegate_journal_commits_total" = journal.commits;
            "Writes of durable counters, each of all that were waiting."
        counter "tidegate_journal_counters_total" = journal.written; "Counters in those writes."
        counter "tidegate_journal_lost_total" = journal.lost; "Decisions whose counts were not on the disk in time."
    }
}

/// Unused units of a lease are returned. Units that cannot be returned are lost to all nodes until they have been
/// refilled: a growing share of lapsed units means a failing store, or leases too short for its round trip.
fn expose_leases(page: &mut Exposition, leases: &LeaseStats) {
    expose! { page;
        counter "tidegate_leases_drawn_total" = leases.leases_drawn; "Leases drawn."
        counter "tidegate_lease_units_granted_total" = leases.units_drawn; "Units drawn in leases."
        counter "tidegate_lease_units_returned_total" = leases.units_returned;
            "Units drawn in leases and returned unused."
        counter "tidegate_lease_units_lapsed_total" = leases.units_lapsed;
            "Units drawn in leases that were neither used nor returned."
        gauge "tidegate_lease_outstanding_units" = leases.units_outstanding;
            "Units drawn in leases that this node holds now."
    }
}

/// Maximum of rules shown: the page is bounded.
const MAX_RULES: usize = 1_000;

fn expose_overshoot(page: &mut Exposition, rules: &BTreeMap<Box<str>, Overshoot>) {
    page.family(
        "tidegate_lenient_overshoot_bound_units",
        MetricKind::Gauge,
        "Units by which a lenient rule may be exceeded before all nodes have synced, in the worst case.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.worst_case);
    }
    page.family(
        "tidegate_lenient_overshoot_at_this_pace_units",
        MetricKind::Gauge,
        "The same if no node gets busier than the busiest node was a moment ago.",
    );
    for (rule, units) in rules.iter().take(MAX_RULES) {
        page.sample(&[("rule", rule)], units.at_current_rate);
    }
}
