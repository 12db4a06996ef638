//! What the store did for which node: every unit that was charged, drawn in advance or given back.
//!
//! Kept by the way between them, which knows when a call was sent and whether its answer was heard. The
//! checkers hold it against what nodes admitted.

use std::sync::Arc;

use parking_lot::Mutex;
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

/// All calls, in the order in which the store did them; what was given back, in the order of sending.
#[derive(Clone, Debug, Default)]
pub struct Books(Arc<Mutex<Vec<Entry>>>);

impl Books {
    /// Writes down a call; the place where it is.
    pub(super) fn write(&self, entry: Entry) -> usize {
        let mut entries = self.0.lock();
        entries.push(entry);
        entries.len() - 1
    }

    /// Completes an entry.
    pub(super) fn amend(&self, place: usize, amend: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.lock().get_mut(place) {
            amend(entry);
        }
    }

    /// All of it, leaving none.
    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.0.lock())
    }
}
