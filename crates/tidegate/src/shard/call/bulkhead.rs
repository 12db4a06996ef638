//! Bounds the number of calls in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fixed number of permits.
#[derive(Clone, Debug)]
pub(crate) struct Bulkhead {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// One permit. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct BulkheadPermit(Arc<AtomicUsize>);

impl Bulkhead {
    pub(crate) fn new(max: usize) -> Self {
        Bulkhead { taken: Arc::default(), max }
    }

    /// Acquires a permit, if one is free.
    pub(crate) fn enter(&self) -> Option<BulkheadPermit> {
        let taken = self.taken.fetch_add(1, Ordering::AcqRel);
        let permit = BulkheadPermit(Arc::clone(&self.taken));
        (taken < self.max).then_some(permit)
    }
}

impl Drop for BulkheadPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_is_free_again() {
        let bulkhead = Bulkhead::new(2);
        let (first, _second) = (bulkhead.enter(), bulkhead.enter());
        assert!(first.is_some() && bulkhead.enter().is_none());
        drop(first);
        assert!(bulkhead.enter().is_some());
    }
}
