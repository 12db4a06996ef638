//! Telling the store what was admitted here, and hearing what the others did: in rounds, while there is
//! anything to tell.
//!
//! Kept true: what was admitted is told once. If the answer cannot be believed the view ends, and the store
//! behind owes what it could not be told.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use tidegate_core::store::{ChargeSet, Source, Store};
use tidegate_core::units::Nanos;

use super::view::{News, View};
use super::{Inner, Overshoot, PAUSE};
use crate::resilience::deadline::within;
use crate::resilience::join::join_all;
use crate::runtime::Runtime;

/// The longest that telling everything may take, and how long to wait before looking again whether it has.
const PATIENCE: Nanos = Nanos::from_secs(3);
const SHORT: Nanos = Nanos::from_millis(1);
/// Counters told of at once.
const AT_ONCE: usize = 1_024;

/// Counts one sync that is in flight, for as long as it lives: finished or cancelled.
struct SyncInFlight<'a>(&'a AtomicUsize);

impl<'a> SyncInFlight<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        SyncInFlight(count)
    }
}

impl Drop for SyncInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<S: Store + 'static, R: Runtime> Inner<S, R> {
    /// Sees to it that the store is told for as long as there are views.
    pub(super) fn keep(inner: &Arc<Self>) {
        if !inner.kept.swap(true, Ordering::AcqRel) {
            let keeping = keep(Arc::downgrade(inner), inner.runtime.clone());
            inner.runtime.spawn(keeping);
        }
    }

    /// Tells everything, and counts nothing here from then on.
    pub(super) async fn flush(&self) {
        self.closed.store(true, Ordering::Release);
        let telling = pin!(async {
            loop {
                self.round().await;
                if self.telling.load(Ordering::Acquire) == 0 && self.is_empty() {
                    return;
                }
                self.runtime.sleep(SHORT).await;
            }
        });
        let _told_or_late = within(&self.runtime, PATIENCE, telling).await;
    }

    fn is_empty(&self) -> bool {
        self.views.parts().all(|part| part.is_empty())
    }

    /// Tells the store of every counter what was admitted, and hears what the others have.
    async fn round(&self) {
        let counters: Vec<u128> = self
            .views
            .parts()
            .flat_map(|part| part.keys().copied().collect::<Vec<_>>())
            .collect();
        for some in counters.chunks(AT_ONCE) {
            join_all(some.iter().map(|counter| self.tell(*counter))).await;
        }
        self.reckon();
    }

    /// Cancelled, it no longer counts as in flight; what it sent may have been charged.
    async fn tell(&self, counter: u128) {
        let _in_flight = SyncInFlight::begin(&self.telling);
        self.tell_of(counter).await;
    }

    async fn tell_of(&self, counter: u128) {
        let closed = self.closed.load(Ordering::Acquire);
        let news = {
            let mut part = self.views.part(counter);
            let news = part.get_mut(&counter).and_then(View::news);
            if news.is_none() {
                part.remove(&counter);
            }
            news
        };
        let Some(News { charge, units }) = news else {
            return;
        };
        let sent = self.runtime.now();
        let answer = match units {
            Some(units) => {
                self.store
                    .force(&ChargeSet::of_one(charge.owing(units)))
                    .await
            }
            None => self.store.peek(&ChargeSet::of_one(charge.charge())).await,
        };
        let heard = self.runtime.now();
        let leftover = {
            let mut part = self.views.part(counter);
            let believed = answer.ok().filter(|o| o.source == Source::Exact && !closed);
            match (believed, part.get_mut(&counter)) {
                (Some(outcome), Some(view)) if outcome.seen.len() == 1 => {
                    view.told(&outcome.seen[0], sent, heard, outcome.at);
                    None
                }
                // From here on the store behind decides, and owes what it could not be told.
                _ => part.remove(&counter).and_then(|view| view.leftover()),
            }
        };
        if let Some(units) = leftover {
            let set = ChargeSet::of_one(charge.owing(units));
            let _told_or_owed = self.store.force(&set).await;
        }
    }

    /// Reckons by how much each rule may be exceeded.
    fn reckon(&self) {
        let (nodes, now) = ((self.nodes)(), self.runtime.now());
        let mut rules: BTreeMap<Box<str>, Overshoot> = BTreeMap::new();
        for mut part in self.views.parts() {
            for view in part.values_mut() {
                let of = view.overshoot(nodes, now);
                let rule = view.charge.rule().as_str();
                let worst = match rules.get_mut(rule) {
                    Some(worst) => worst,
                    None => rules.entry(rule.into()).or_default(),
                };
                worst.most = worst.most.max(of.most);
                worst.at_this_pace = worst.at_this_pace.max(of.at_this_pace);
            }
        }
        *self.overshoot.lock() = rules;
    }
}

/// Tells the store every so often, until there is nothing left to tell.
async fn keep<S: Store + 'static, R: Runtime>(inner: Weak<Inner<S, R>>, runtime: R) {
    let mut next = runtime.now().plus(PAUSE);
    loop {
        runtime.sleep(next.since(runtime.now())).await;
        let Some(inner) = inner.upgrade() else { return };
        next = runtime.now().plus(PAUSE);
        inner.round().await;
        if inner.is_empty() {
            inner.kept.store(false, Ordering::Release);
            // Somebody may have begun just before that and found it kept.
            if inner.is_empty() || inner.kept.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future, pending};
    use std::task::{Context, Waker};

    /// A flush that ran out of time once left the count raised for ever.
    #[test]
    fn a_cancelled_sync_is_not_in_flight_any_more() {
        let count = AtomicUsize::new(0);
        let mut sync = Box::pin(async {
            let _in_flight = SyncInFlight::begin(&count);
            pending::<()>().await;
        });
        let polled = sync.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(count.load(Ordering::Acquire), 1);
        drop(sync);
        assert_eq!(count.load(Ordering::Acquire), 0);
    }
}
