//! Pings, and the way back after the store lost counts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidegate_core::store::{Probe, Seed, Store};
use tidegate_core::units::Nanos;

use super::{Node, PER_CALL};
use crate::resilience::breaker::Change;
use crate::resilience::event::Event;
use crate::resilience::standing::Next;
use crate::runtime::Runtime;

/// Pings for as long as the node lives.
pub(super) async fn pings<S: Store + Probe + 'static, R: Runtime>(
    node: Weak<Node<S, R>>,
    runtime: R,
) {
    while let Some(node) = node.upgrade() {
        if !node.recovering.load(Ordering::Acquire) {
            node.ping().await;
        }
        let every = node.settings.ping_every;
        let tenth = Nanos::new(every.get() / 10);
        drop(node);
        let wait = every
            .since(tenth)
            .plus(runtime.jitter(tenth).plus(runtime.jitter(tenth)));
        runtime.sleep(wait).await;
    }
}

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// One ping, and what follows from it.
    async fn ping(self: &Arc<Self>) {
        let beat = self.standing.lock().beat();
        let sent = self.runtime.now();
        let (vitals, change) = self.guard.ping(beat).await;
        let now = self.runtime.now();
        if change == Some(Change::Closed) {
            self.standing.lock().reachable(now);
        }
        let Some(vitals) = vitals else {
            self.standing.lock().unheard();
            return;
        };
        self.clock.note(sent, now, vitals.at);
        self.watch_clock(now.since(sent), vitals.at);
        let (was_exact, next) = {
            let mut standing = self.standing.lock();
            let was_exact = standing.is_exact();
            let next = standing.heard(&vitals, now);
            if !standing.is_exact() {
                self.exact.store(false, Ordering::Release);
            }
            (was_exact, next)
        };
        match next {
            Next::Nothing => {
                self.confirmed.store(sent.get(), Ordering::Release);
                match change {
                    Some(Change::Closed) => self.push_spread(),
                    _ => self.owes(), // nothing is left lying
                }
            }
            Next::Believe => self.settle_soon(),
            Next::Seed | Next::Wait => {
                if was_exact {
                    (self.watcher)(Event::Lost);
                }
                self.recover_soon();
            }
        }
    }

    /// A doubt: asks the store whether it is still the same, without waiting for the next ping.
    pub(super) fn ask_soon(self: &Arc<Self>) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.ping().await;
            node.runtime.sleep(node.settings.ping_in_recovery).await;
            node.asking.store(false, Ordering::Release);
        });
    }

    pub(super) fn recover_soon(self: &Arc<Self>) {
        if self.guard.is_open() || self.recovering.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.recover().await;
            node.recovering.store(false, Ordering::Release);
        });
    }

    /// Puts back what is remembered and waits for the others to have done so.
    async fn recover(self: &Arc<Self>) {
        while self.standing.lock().is_recovering() && !self.guard.is_open() {
            self.ping().await;
            let unseeded = {
                let standing = self.standing.lock();
                let life = standing.life();
                life.filter(|_| standing.is_recovering() && standing.beat().seeded != life)
            };
            if let Some(life) = unseeded
                && let Some(counters) = self.seed().await
                && self.guard.life().is_none_or(|now| now == life)
            {
                self.standing.lock().seeded(life);
                (self.watcher)(Event::Seeded { life, counters });
                continue; // so that the others hear of it
            }
            if self.standing.lock().is_recovering() {
                self.runtime.sleep(self.settings.ping_in_recovery).await;
            }
        }
    }

    /// Merges the mirror into the store; how many counters, or nothing if the store failed.
    async fn seed(&self) -> Option<usize> {
        let all = self.mirror.all(self.store_time(), self.runtime.now());
        for some in all.chunks(PER_CALL) {
            let seeds: Vec<Seed<'_>> = some
                .iter()
                .map(|(charge, state)| Seed {
                    charge: charge.charge(),
                    state: state.clone(),
                })
                .collect();
            self.guard.seed(&seeds).await.ok()?;
        }
        Some(all.len())
    }
}
