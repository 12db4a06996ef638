//! A bound on what is under way at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many permits and no more.
#[derive(Clone, Debug)]
pub(super) struct Bulkhead {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// One permit, given back when dropped.
#[derive(Debug)]
pub(super) struct BulkheadPermit(Arc<AtomicUsize>);

impl Bulkhead {
    pub(super) fn new(max: usize) -> Self {
        Bulkhead {
            taken: Arc::default(),
            max,
        }
    }

    /// A permit, if there is one.
    pub(super) fn enter(&self) -> Option<BulkheadPermit> {
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
    fn a_permit_is_free_again_when_it_is_left() {
        let bulkhead = Bulkhead::new(2);
        let (first, _second) = (bulkhead.enter(), bulkhead.enter());
        assert!(first.is_some() && bulkhead.enter().is_none());
        drop(first);
        assert!(bulkhead.enter().is_some());
    }
}
