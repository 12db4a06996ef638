//! What is told of the store: how full it is, or, of one that is shared, how it is doing.

use std::collections::BTreeMap;

use tidegate_core::store::FailureKind;

use super::ahead;
use super::exposition::{Exposition, Kind};
use super::series::{Counter, Gauge};
use crate::resilience::{
    ClockNews, ClockReading, Event, FailureCounts, LeaseFacts, Level, Overshoot,
};

/// What there is to say of a store when the page is written.
#[derive(Debug)]
pub enum StoreFacts<'a> {
    /// Of one in memory.
    Memory(MemoryFacts),
    /// Of one that is shared.
    Shared {
        /// What was counted.
        series: &'a SharedSeries,
        /// How often it failed.
        failures: &'a FailureCounts,
        /// How its clock is, once it has answered.
        clock: Option<ClockReading>,
        /// Whether charges are made safe by replicas as rules ask.
        durability: DurabilityState,
        /// What became of units drawn in advance.
        leases: LeaseFacts,
        /// By how many units each lenient rule may be exceeded.
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
            StoreFacts::Shared {
                series,
                failures,
                clock,
                durability,
                leases,
                overshoot,
            } => {
                series.expose(page);
                expose_durability(page, "replica", *durability);
                expose_failures(page, failures);
                expose_clock(page, clock.as_ref());
                ahead::expose_leases(page, leases);
                ahead::expose_overshoot(page, overshoot);
            }
        }
    }
}

/// Whether what rules with `durability` ask for is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurabilityState {
    /// It is, or no rule asks.
    Given,
    /// It is not: such rules are decided as without the store.
    Failing,
}

/// What a store in memory says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFacts {
    /// Counters kept.
    pub keys: u64,
    /// Memory they take.
    pub bytes: u64,
    /// The most they may take.
    pub cap_bytes: u64,
    /// Charges that had to share a counter because the store was full.
    pub overflowed: u64,
    /// Counters freed because they had nothing left to tell.
    pub swept: u64,
    /// Counters converted to a limit with other parameters.
    pub converted: u64,
    /// Counters found ahead of the clock: it was set back.
    pub clock_steps: u64,
    /// Of its journal on disk, if it has one.
    pub journal: Option<JournalFacts>,
}

/// What the journal of durable counts says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalFacts {
    /// Writes that are on the disk.
    pub commits: u64,
    /// Counters in them.
    pub written: u64,
    /// Decisions whose counts could not be kept.
    pub unkept: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
}

impl JournalFacts {
    fn durability(&self) -> DurabilityState {
        if self.failing {
            DurabilityState::Failing
        } else {
            DurabilityState::Given
        }
    }
}

/// How a node gets along with the store it shares.
#[derive(Debug, Default)]
pub struct SharedSeries {
    open: Gauge,
    opened: Counter,
    exact: Gauge,
    losses: Counter,
    seeded: Counter,
    trusted_early: Counter,
    pushed: Counter,
    unconfirmed: Counter,
    dropped: Counter,
    clock_jumps: Counter,
}

impl SharedSeries {
    /// Units that the store will never count.
    pub fn pending_dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Counts an event.
    pub fn notice(&self, event: &Event) {
        match event {
            Event::BreakerOpened { .. } => {
                self.open.set(1);
                self.opened.inc();
            }
            Event::BreakerClosed => self.open.set(0),
            Event::Lost => {
                self.exact.set(0);
                self.losses.inc();
            }
            Event::Seeded { counters, .. } => self.seeded.add(*counters as u64),
            Event::TrustedEarly { .. } => self.trusted_early.inc(),
            Event::Exact => self.exact.set(1),
            Event::Pushed { units, .. } | Event::LatePushed { units } => self.pushed.add(*units),
            Event::Unconfirmed { units } => self.unconfirmed.add(*units),
            Event::PendingDropped { units } => self.dropped.add(*units),
            Event::Clock(ClockNews::Jumped { .. }) => self.clock_jumps.inc(),
            // Counted as a failure of its kind.
            Event::RecordRefused { .. } => {}
            Event::Clock(ClockNews::Level { .. }) => {} // read when the page is written
        }
    }

    /// Whether the breaker is open.
    pub fn is_open(&self) -> bool {
        self.open.get() == 1
    }

    /// Whether the store is believed to hold every count.
    pub fn is_exact(&self) -> bool {
        self.exact.get() == 1
    }

    fn expose(&self, page: &mut Exposition) {
        page.single(
            "tidegate_store_breaker_open",
            Kind::Gauge,
            "1 while the store is not asked because it failed.",
            self.open.get(),
        );
        page.single(
            "tidegate_store_breaker_opened_total",
            Kind::Counter,
            "How often the store was given up.",
            self.opened.get(),
        );
        page.single(
            "tidegate_store_exact",
            Kind::Gauge,
            "1 while the store answers and is believed to hold every count.",
            u64::from(self.is_exact() && !self.is_open()),
        );
        page.single(
            "tidegate_store_losses_total",
            Kind::Counter,
            "How often the store was found to have lost counts.",
            self.losses.get(),
        );
        page.single(
            "tidegate_store_seeded_total",
            Kind::Counter,
            "Counters that this node put back into a store that had lost them.",
            self.seeded.get(),
        );
        page.single(
            "tidegate_store_trusted_early_total",
            Kind::Counter,
            "How often the store was trusted again before every node had put back what it remembers.",
            self.trusted_early.get(),
        );
        page.single(
            "tidegate_store_reconciled_units_total",
            Kind::Counter,
            "Units admitted without the store and charged to it afterwards.",
            self.pushed.get(),
        );
        page.single(
            "tidegate_store_unconfirmed_units_total",
            Kind::Counter,
            "Units of charges whose reply was late, lost or an error; the store may count them twice.",
            self.unconfirmed.get(),
        );
        page.single(
            "tidegate_store_pending_dropped_units_total",
            Kind::Counter,
            "Units admitted without the store that it will never count: the table of pending charges was full.",
            self.dropped.get(),
        );
        page.single(
            "tidegate_store_clock_jumps_total",
            Kind::Counter,
            "How often the store's clock or this node's was set, or another store took over.",
            self.clock_jumps.get(),
        );
    }
}

/// Every kind from the start: the first error of a kind is an increase then.
fn expose_failures(page: &mut Exposition, failures: &FailureCounts) {
    page.family(
        "tidegate_store_errors_total",
        Kind::Counter,
        "Calls, pings and attempts to join the store that failed, by the kind of the failure.",
    );
    for kind in FailureKind::ALL {
        page.sample(&[("kind", kind.name())], failures.of(kind));
    }
}

/// Nothing before the store has answered: a zero would say that the clocks agree.
fn expose_clock(page: &mut Exposition, clock: Option<&ClockReading>) {
    let Some(clock) = clock else { return };
    page.single(
        "tidegate_store_clock_offset_seconds",
        Kind::Gauge,
        "How far the store's clock is ahead of this node's; negative: behind.",
        clock.offset.nanos as f64 / 1e9,
    );
    page.single(
        "tidegate_store_clock_level",
        Kind::Gauge,
        "What that calls for: 0 nothing, 1 a warning, 2 an alarm.",
        match clock.level {
            Level::Fine => 0,
            Level::Warn => 1,
            Level::Alarm => 2,
        },
    );
}

fn expose_memory(page: &mut Exposition, store: &MemoryFacts) {
    page.single(
        "tidegate_store_keys",
        Kind::Gauge,
        "Counters in the store.",
        store.keys,
    );
    page.single(
        "tidegate_store_bytes",
        Kind::Gauge,
        "Memory the counters take.",
        store.bytes,
    );
    page.single(
        "tidegate_store_cap_bytes",
        Kind::Gauge,
        "The most memory the counters may take.",
        store.cap_bytes,
    );
    page.single(
        "tidegate_store_overflow_total",
        Kind::Counter,
        "Charges that shared a counter because the store was full.",
        store.overflowed,
    );
    page.single(
        "tidegate_store_swept_total",
        Kind::Counter,
        "Counters freed because they were full again.",
        store.swept,
    );
    page.single(
        "tidegate_store_converted_total",
        Kind::Counter,
        "Counters converted to a limit with other parameters.",
        store.converted,
    );
    page.single(
        "tidegate_store_clock_steps_total",
        Kind::Counter,
        "Counters found ahead of the clock, which must have been set back.",
        store.clock_steps,
    );
}

/// One series for every store that can be durable, so that one alert serves all of them.
fn expose_durability(page: &mut Exposition, kind: &str, state: DurabilityState) {
    page.family(
        "tidegate_durability_failing",
        Kind::Gauge,
        "1 while counts cannot be made as safe as rules with `durability` ask, which are decided as without \
         the store.",
    );
    let failing = u64::from(state == DurabilityState::Failing);
    page.sample(&[("kind", kind)], failing);
}

fn expose_journal(page: &mut Exposition, journal: &JournalFacts) {
    page.single(
        "tidegate_journal_failing",
        Kind::Gauge,
        "1 while durable counts cannot be written to the disk.",
        u64::from(journal.failing),
    );
    page.single(
        "tidegate_journal_commits_total",
        Kind::Counter,
        "Writes of durable counts, each of all that were waiting.",
        journal.commits,
    );
    page.single(
        "tidegate_journal_counters_total",
        Kind::Counter,
        "Counters in those writes.",
        journal.written,
    );
    page.single(
        "tidegate_journal_unkept_total",
        Kind::Counter,
        "Decisions whose counts were not on the disk in time.",
        journal.unkept,
    );
}
