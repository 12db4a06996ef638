//! What several parts tell, as one.
//!
//! The store as a whole is no longer asked when one of its parts is not, and exact when all are.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tidegate_core::store::PartId;

use crate::resilience::event::{Event, Watcher};

/// Someone who wants to know what becomes of each part. It must neither wait nor fail.
pub trait PartWatch: Send + Sync {
    /// A part was met: it is not believed yet.
    fn met(&self, part: PartId);

    /// Something about a part changed.
    fn told(&self, part: PartId, event: Event);

    /// A part is none any more.
    fn gone(&self, part: PartId);
}

/// Tells one watcher of the store as a whole.
pub(in crate::resilience) struct AsOne {
    watcher: Watcher,
    parts: Mutex<Unwell>,
}

#[derive(Default)]
struct Unwell {
    open: BTreeSet<PartId>,
    inexact: BTreeSet<PartId>,
}

impl AsOne {
    pub(in crate::resilience) fn new(watcher: Watcher) -> Self {
        AsOne {
            watcher,
            parts: Mutex::default(),
        }
    }
}

impl PartWatch for AsOne {
    fn met(&self, part: PartId) {
        self.parts.lock().inexact.insert(part);
    }

    fn told(&self, part: PartId, event: Event) {
        let news = {
            let mut parts = self.parts.lock();
            match event {
                Event::BreakerOpened => parts.open.insert(part) && parts.open.len() == 1,
                Event::BreakerClosed => parts.open.remove(&part) && parts.open.is_empty(),
                Event::Exact => parts.inexact.remove(&part) && parts.inexact.is_empty(),
                Event::Lost => {
                    parts.inexact.insert(part);
                    true
                }
                Event::Seeded { .. } | Event::Pushed { .. } | Event::Clock(_) => true,
            }
        };
        if news {
            (self.watcher)(event);
        }
    }

    fn gone(&self, part: PartId) {
        let (closed, exact) = {
            let mut parts = self.parts.lock();
            let closed = parts.open.remove(&part) && parts.open.is_empty();
            let exact = parts.inexact.remove(&part) && parts.inexact.is_empty();
            (closed, exact)
        };
        for (news, event) in [(closed, Event::BreakerClosed), (exact, Event::Exact)] {
            if news {
                (self.watcher)(event);
            }
        }
    }
}
