//! What several parts tell, as one.
//!
//! The store as a whole is no longer asked when one of its parts is not, and exact when all are.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, PartId};

use crate::resilience::event::{Event, Watcher};

/// Someone who wants to know what becomes of each part. It must neither wait nor fail.
pub trait PartWatch: Send + Sync {
    /// A part was met: it is not believed yet.
    fn met(&self, part: PartId);

    /// Something about a part changed. It may have gone a moment before.
    fn told(&self, part: PartId, event: Event);

    /// A part is none any more.
    fn gone(&self, part: PartId);
}

/// Tells one watcher of the store as a whole.
pub(in crate::resilience) struct AsOne {
    watcher: Watcher,
    parts: Mutex<BTreeMap<PartId, Health>>,
}

#[derive(Clone, Default)]
struct Health {
    /// Why the breaker is open, if it is.
    open_by: Option<FailureCause>,
    exact: bool,
}

impl AsOne {
    pub(in crate::resilience) fn new(watcher: Watcher) -> Self {
        AsOne {
            watcher,
            parts: Mutex::default(),
        }
    }

    /// Tells how the whole has changed by a change of its parts.
    fn tell_change(&self, change: impl FnOnce(&mut BTreeMap<PartId, Health>)) {
        let (was, is) = {
            let mut parts = self.parts.lock();
            let was = whole(&parts);
            change(&mut parts);
            (was, whole(&parts))
        };
        match (was.open_by, is.open_by) {
            (None, Some(cause)) => (self.watcher)(Event::BreakerOpened { cause }),
            (Some(_), None) => (self.watcher)(Event::BreakerClosed),
            _ => {}
        }
        if is.exact && !was.exact {
            (self.watcher)(Event::Exact);
        }
    }
}

fn whole(parts: &BTreeMap<PartId, Health>) -> Health {
    Health {
        open_by: parts.values().find_map(|part| part.open_by.clone()),
        exact: !parts.is_empty() && parts.values().all(|part| part.exact),
    }
}

impl PartWatch for AsOne {
    fn met(&self, part: PartId) {
        self.parts.lock().insert(part, Health::default());
    }

    fn told(&self, part: PartId, event: Event) {
        if matches!(
            event,
            Event::Lost
                | Event::Seeded { .. }
                | Event::TrustedEarly { .. }
                | Event::Pushed { .. }
                | Event::Unconfirmed { .. }
                | Event::LatePushed { .. }
                | Event::PendingDropped { .. }
                | Event::RecordRefused { .. }
                | Event::Clock(_)
        ) {
            (self.watcher)(event.clone());
        }
        self.tell_change(|parts| {
            let Some(part) = parts.get_mut(&part) else {
                return; // gone
            };
            match event {
                Event::BreakerOpened { cause } => part.open_by = Some(cause),
                Event::BreakerClosed => part.open_by = None,
                Event::Lost => part.exact = false,
                Event::Exact => part.exact = true,
                Event::Seeded { .. }
                | Event::TrustedEarly { .. }
                | Event::Pushed { .. }
                | Event::Unconfirmed { .. }
                | Event::LatePushed { .. }
                | Event::PendingDropped { .. }
                | Event::RecordRefused { .. }
                | Event::Clock(_) => {}
            }
        });
    }

    fn gone(&self, part: PartId) {
        self.tell_change(|parts| {
            parts.remove(&part);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::store::FailureKind;

    use super::*;

    fn opened() -> Event {
        let cause = FailureCause::new(FailureKind::Refused, "connection refused");
        Event::BreakerOpened { cause }
    }

    /// Runs words of a part number and a letter: `m` met, `g` gone, `o` opened, `c` closed, `e` exact,
    /// `l` lost. What is told of the whole, in the same letters.
    #[track_caller]
    fn check(words: &str, want: &str) {
        let told = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&told);
        let as_one = AsOne::new(Arc::new(move |event| {
            heard.lock().push(match event {
                Event::BreakerOpened { .. } => 'o',
                Event::BreakerClosed => 'c',
                Event::Exact => 'e',
                Event::Lost => 'l',
                Event::Seeded { .. }
                | Event::TrustedEarly { .. }
                | Event::Pushed { .. }
                | Event::Unconfirmed { .. }
                | Event::LatePushed { .. }
                | Event::PendingDropped { .. }
                | Event::RecordRefused { .. }
                | Event::Clock(_) => '.',
            });
        }));
        for word in words.split(' ') {
            let (part, what) = word.split_at(1);
            let part = PartId(part.parse().unwrap());
            match what {
                "m" => as_one.met(part),
                "g" => as_one.gone(part),
                "o" => as_one.told(part, opened()),
                "c" => as_one.told(part, Event::BreakerClosed),
                "e" => as_one.told(part, Event::Exact),
                "l" => as_one.told(part, Event::Lost),
                other => panic!("{other}"),
            }
        }
        assert_eq!(*told.lock(), want, "{words}");
    }

    #[test]
    fn one_part_is_the_whole() {
        check("1m 1e 1o 1c 1l 1e", "eocle");
    }

    #[test]
    fn the_whole_is_exact_when_all_parts_are_and_open_when_one_is() {
        check("1m 2m 1e 2e", "e");
        check("1m 2m 1o 2o 1c 2c", "oc");
        check("1m 2m 1e 2e 1l 2l 1e 2e", "elle");
    }

    #[test]
    fn a_part_that_is_gone_says_nothing_any_more() {
        check("1m 2m 1e 2e 1o 1g 3m 3e", "eoce");
        check("1m 2m 2e 1g", "e");
        check("1m 1e 1g 1o", "e");
    }
}
