//! Observes shards, and aggregates their events into those of the store as a whole.
//!
//! The store's breaker counts as open while that of any shard is, and the store is exact while all shards are.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::store::{FailureCause, ShardId};

use crate::shard::event::{StoreEvent, Watcher};

/// Receives the events of each shard. It must neither block nor panic.
pub trait ShardObserver: Send + Sync {
    /// A shard was discovered: it is not trusted yet.
    fn discovered(&self, shard: ShardId);

    /// A shard published an event. It may have been removed a moment before.
    fn changed(&self, shard: ShardId, event: StoreEvent);

    /// A shard was removed.
    fn removed(&self, shard: ShardId);
}

/// Publishes the events of the store as a whole to one watcher.
pub(crate) struct AggregateObserver {
    watcher: Watcher,
    shards: Mutex<BTreeMap<ShardId, ShardHealth>>,
}

#[derive(Clone, Default)]
struct ShardHealth {
    /// Why the breaker is open, if it is.
    open_by: Option<FailureCause>,
    exact: bool,
}

impl AggregateObserver {
    pub(crate) fn new(watcher: Watcher) -> Self {
        AggregateObserver { watcher, shards: Mutex::default() }
    }

    /// Publishes how the state of the whole store changes by a change of its shards.
    fn publish_change(&self, change: impl FnOnce(&mut BTreeMap<ShardId, ShardHealth>)) {
        let (was, is) = {
            let mut shards = self.shards.lock();
            let was = aggregate(&shards);
            change(&mut shards);
            (was, aggregate(&shards))
        };
        match (was.open_by, is.open_by) {
            (None, Some(cause)) => (self.watcher)(StoreEvent::BreakerOpened { cause }),
            (Some(_), None) => (self.watcher)(StoreEvent::BreakerClosed),
            _ => {}
        }
        if is.exact && !was.exact {
            (self.watcher)(StoreEvent::Exact);
        }
    }
}

fn aggregate(shards: &BTreeMap<ShardId, ShardHealth>) -> ShardHealth {
    ShardHealth {
        open_by: shards.values().find_map(|shard| shard.open_by.clone()),
        exact: !shards.is_empty() && shards.values().all(|shard| shard.exact),
    }
}

impl ShardObserver for AggregateObserver {
    fn discovered(&self, shard: ShardId) {
        self.shards.lock().insert(shard, ShardHealth::default());
    }

    fn changed(&self, shard: ShardId, event: StoreEvent) {
        // Those are published when they change the state of the whole store.
        let of_whole_store =
            matches!(event, StoreEvent::BreakerOpened { .. } | StoreEvent::BreakerClosed | StoreEvent::Exact);
        if !of_whole_store {
            (self.watcher)(event.clone());
        }
        self.publish_change(|shards| {
            let Some(state) = shards.get_mut(&shard) else {
                return; // removed
            };
            match event {
                StoreEvent::BreakerOpened { cause } => state.open_by = Some(cause),
                StoreEvent::BreakerClosed => state.open_by = None,
                StoreEvent::CountsLost => state.exact = false,
                StoreEvent::Exact => state.exact = true,
                _ => {}
            }
        });
    }

    fn removed(&self, shard: ShardId) {
        self.publish_change(|shards| {
            shards.remove(&shard);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::store::FailureKind;

    use super::*;

    fn opened() -> StoreEvent {
        let cause = FailureCause::new(FailureKind::Refused, "connection refused");
        StoreEvent::BreakerOpened { cause }
    }

    /// Runs events as a shard number and a letter: `d` discovered, `r` removed, `o` opened, `c` closed, `e` exact, `l`
    /// lost. Expects the events of the whole store, in the same letters.
    #[track_caller]
    fn check(words: &str, want: &str) {
        let reported = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&reported);
        let observer = AggregateObserver::new(Arc::new(move |event| {
            sink.lock().push(match event {
                StoreEvent::BreakerOpened { .. } => 'o',
                StoreEvent::BreakerClosed => 'c',
                StoreEvent::Exact => 'e',
                StoreEvent::CountsLost => 'l',
                _ => '.',
            });
        }));
        for word in words.split(' ') {
            let (shard, what) = word.split_at(1);
            let shard = ShardId(shard.parse().unwrap());
            match what {
                "d" => observer.discovered(shard),
                "r" => observer.removed(shard),
                "o" => observer.changed(shard, opened()),
                "c" => observer.changed(shard, StoreEvent::BreakerClosed),
                "e" => observer.changed(shard, StoreEvent::Exact),
                "l" => observer.changed(shard, StoreEvent::CountsLost),
                other => panic!("{other}"),
            }
        }
        assert_eq!(*reported.lock(), want, "{words}");
    }

    #[test]
    fn a_single_shard_is_the_whole_store() {
        check("1d 1e 1o 1c 1l 1e", "eocle");
    }

    #[test]
    fn the_store_is_exact_when_all_shards_are_and_open_when_one_is() {
        check("1d 2d 1e 2e", "e");
        check("1d 2d 1o 2o 1c 2c", "oc");
        check("1d 2d 1e 2e 1l 2l 1e 2e", "elle");
    }

    #[test]
    fn a_removed_shard_has_no_effect_any_more() {
        check("1d 2d 1e 2e 1o 1r 3d 3e", "eoce");
        check("1d 2d 2e 1r", "e");
        check("1d 1e 1r 1o", "e");
    }
}
