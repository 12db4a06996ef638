//! What the store did for which node: every unit that was charged, drawn in advance or given back, every
//! estimate and every slot.
//!
//! Kept by the way between them, which knows when a call was sent and whether its answer was heard. The
//! checkers hold it against what nodes admitted.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::Settled;
use tidegate_core::units::Nanos;

/// What was done to a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// So many units were charged for a request, or for a debt.
    Charged(u64),
    /// So many units were drawn in advance.
    Drawn(u64),
    /// So many units were to be given back that were charged at this time of the store.
    Returned(u64, Nanos),
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// For whom.
    pub node: usize,
    /// The bits of the counter.
    pub counter: u128,
    /// When the call was sent.
    pub sent: Nanos,
    /// When the store did it, by its own clock, if it did.
    pub at: Option<Nanos>,
    /// When the node heard so, if it did.
    pub heard: Option<Nanos>,
    /// What.
    pub deed: Deed,
}

/// What was done about an estimate, or to a counter that has some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// An estimate was to be charged.
    Reserved {
        /// Of which reservation.
        id: u128,
        /// How long it lasts.
        lasts: Nanos,
        /// Whether it was.
        admitted: bool,
    },
    /// It was to be corrected to what was used; nothing if nobody said.
    Settled {
        /// Of which reservation.
        id: u128,
        /// How much.
        used: Option<u64>,
        /// Whether it was too late for it, by its own dates.
        too_late: bool,
        /// Whether it was.
        settled: Settled,
    },
    /// What was admitted without the store was charged.
    Charged,
    /// What was charged at this time of the store was given back.
    Returned(Nanos),
    /// What nodes remember was put back.
    Seeded,
}

/// A counter that a step was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched {
    /// Its bits.
    pub counter: u128,
    /// How much: of an estimate, what was estimated.
    pub units: u64,
    /// What it holds afterwards.
    pub after: u64,
}

/// One step, as the store took it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posting {
    /// When, by the simulation's clock and by the store's.
    pub now: Nanos,
    /// See `now`.
    pub at: Nanos,
    /// For whom.
    pub node: usize,
    /// What.
    pub step: Step,
    /// To what.
    pub touched: Vec<Touched>,
}

/// What is asked about a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// To have one.
    Hold,
    /// To keep it.
    Renew,
    /// To give it back.
    Release,
}

/// One slot that was asked about, as the store did it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    /// When, by the simulation's clock.
    pub now: Nanos,
    /// By which node.
    pub node: usize,
    /// Of which counter.
    pub counter: u128,
    /// For which holder.
    pub holder: u128,
    /// What was asked.
    pub verb: Verb,
    /// How many there may be.
    pub most: u32,
    /// Whether the holder has a slot now.
    pub granted: bool,
    /// How many are open.
    pub open: u32,
}

/// All calls, in the order in which the store did them; what was given back, in the order of sending.
#[derive(Clone, Debug, Default)]
pub struct Books {
    calls: Arc<Mutex<Vec<Entry>>>,
    /// In the order in which the store did them, if anybody reserves.
    postings: Option<Arc<Mutex<Vec<Posting>>>>,
    passages: Arc<Mutex<Vec<Passage>>>,
}

impl Books {
    /// Those in which every step of a counter is written down, because some of them are estimates.
    pub(crate) fn of_estimates() -> Self {
        Books {
            postings: Some(Arc::default()),
            ..Books::default()
        }
    }

    /// Writes down a call; the place where it is.
    pub(super) fn write(&self, entry: Entry) -> usize {
        let mut entries = self.calls.lock();
        entries.push(entry);
        entries.len() - 1
    }

    /// Completes an entry.
    pub(super) fn amend(&self, place: usize, amend: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.calls.lock().get_mut(place) {
            amend(entry);
        }
    }

    /// All of it, leaving none.
    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.calls.lock())
    }

    /// Writes down a step, if anybody reserves.
    pub(super) fn post(&self, posting: impl FnOnce() -> Posting) {
        if let Some(postings) = &self.postings {
            postings.lock().push(posting());
        }
    }

    /// Writes down what became of a slot.
    pub(super) fn pass(&self, passage: Passage) {
        self.passages.lock().push(passage);
    }

    /// All steps, leaving none.
    pub(crate) fn take_postings(&self) -> Vec<Posting> {
        let postings = self.postings.as_ref();
        postings.map_or_else(Vec::new, |all| std::mem::take(&mut *all.lock()))
    }

    /// What became of all slots, leaving none.
    pub(crate) fn take_passages(&self) -> Vec<Passage> {
        std::mem::take(&mut *self.passages.lock())
    }

    /// Whether the store has given or renewed a slot.
    pub(crate) fn has_given(&self, holder: u128) -> bool {
        let passages = self.passages.lock();
        let mut latest = passages.iter().rev();
        latest.any(|passage| passage.holder == holder && passage.granted)
    }
}
