//! Pings, and the way back after the store lost counts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidegate_core::algorithms::State;
use tidegate_core::store::{Probe, Seed, Slot, Store, Vitals};
use tidegate_core::units::Nanos;

use super::{Node, PER_CALL, SLOTS_AT_ONCE, by_slot};
use crate::resilience::event::Event;
use crate::resilience::guard::PingReply;
use crate::resilience::join::join_all;
use crate::resilience::owned::OwnedCharge;
use crate::resilience::standing::{Lacking, Next, Standing};
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
    /// One ping, and what follows from it. A late ping is waited for in the background.
    async fn ping(self: &Arc<Self>) {
        let beat = self.standing.lock().beat();
        let sent = self.runtime.now();
        match self.guard.ping(beat).await {
            PingReply::InTime(vitals) => self.heard(sent, &vitals),
            PingReply::Failed => self.update_standing(Standing::unheard),
            PingReply::Late(ping) => {
                if self.guard.is_open() {
                    self.update_standing(Standing::unheard);
                }
                let node = Arc::clone(self);
                self.runtime.spawn(async move {
                    match node.guard.late_ping(ping).await {
                        Some(vitals) => node.heard(sent, &vitals),
                        None => node.update_standing(Standing::unheard),
                    }
                });
            }
        }
    }

    /// The reply to a ping that was sent at `sent`. An older reply than one that was heard says nothing new.
    fn heard(self: &Arc<Self>, sent: Nanos, vitals: &Vitals) {
        if self.heard_ping.fetch_max(sent.get(), Ordering::AcqRel) > sent.get() {
            return;
        }
        self.note_lacking();
        let now = self.runtime.now();
        let closing = self.guard.closed_at();
        let noticed = self.noticed_closing.swap(closing.get(), Ordering::AcqRel);
        let closed = noticed != closing.get();
        if closed {
            self.update_standing(|standing| standing.reachable(now));
        }
        self.clock.note(sent, now, vitals.at);
        self.watch_clock(now.since(sent), vitals.at);
        // Found out before the lock is taken, because it may take a while.
        let lacking = {
            let standing = self.standing.lock();
            let is_unmet = standing.life().is_none();
            is_unmet.then(|| standing.lacking_in(vitals))
        };
        let remembers = lacking.is_some_and(|lacking| self.remembers_any(&lacking));
        let (was_known, next) = self.update_standing(|standing| {
            // One that was never met and should hold what this node remembers took over from another.
            let was_known = standing.is_exact() || standing.life().is_none();
            let next = standing.heard(vitals, now, || remembers);
            if !standing.is_exact() {
                self.exact.store(false, Ordering::Release);
            }
            (was_known, next)
        });
        match next {
            Next::Nothing => {
                self.confirmed.store(sent.get(), Ordering::Release);
                self.tell_slots();
                if closed {
                    self.push_spread();
                } else {
                    self.owes(); // nothing is left lying
                }
            }
            Next::Trust { missing } => {
                if missing > 0 {
                    (self.watcher)(Event::TrustedEarly { missing });
                }
                self.settle_soon();
            }
            Next::Seed | Next::Wait => {
                if next == Next::Seed && was_known {
                    self.tell_loss();
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
                let unseeded = standing.is_recovering() && standing.beat().seeded != life;
                life.filter(|_| unseeded)
                    .map(|life| (life, standing.lack_count()))
            };
            if let Some((life, lack_count)) = unseeded
                && let Some(counters) = self.seed().await
                && self.guard.life().is_none_or(|now| now == life)
            {
                self.update_standing(|standing| standing.seeded(life, lack_count));
                if counters > 0 {
                    (self.watcher)(Event::Seeded { life, counters });
                }
                continue; // so that the others hear of it
            }
            if self.standing.lock().is_recovering() {
                self.runtime.sleep(self.settings.ping_in_recovery).await;
            }
        }
    }

    /// Merges the mirror into the store, and the open slots; how many counters, or nothing if the store failed.
    async fn seed(&self) -> Option<usize> {
        let all = self.remembered();
        for slots in by_slot(&all).chunks(SLOTS_AT_ONCE) {
            let seeding = slots.iter().map(|known| self.seed_slot(known));
            let done = join_all(seeding).await;
            done.into_iter().collect::<Option<()>>()?;
        }
        self.seed_slots().await.then_some(all.len())
    }

    /// Merges what is known of one slot.
    async fn seed_slot(&self, known: &[(OwnedCharge, State)]) -> Option<()> {
        for some in known.chunks(PER_CALL) {
            let seeds: Vec<Seed<'_>> = some
                .iter()
                .map(|(charge, state)| Seed {
                    charge: charge.charge(),
                    state: state.clone(),
                })
                .collect();
            if let Err(error) = self.guard.seed(&seeds).await {
                if !self.guard.is_refused(&error) {
                    return None;
                }
                // The record of one cannot be used: the others are put back without it.
                for seed in seeds.chunks(1) {
                    let alone = self.guard.seed(seed).await;
                    alone
                        .or_else(|error| {
                            if self.guard.is_refused(&error) {
                                Ok(())
                            } else {
                                Err(error)
                            }
                        })
                        .ok()?;
                }
            }
        }
        Some(())
    }

    /// Whether anything is known of counters that the store holds, and that it may lack.
    fn remembers_any(&self, lacking: &Lacking) -> bool {
        let holds = |subject| self.guard.slot(subject).is_some();
        let (at, now) = (self.store_time(), self.runtime.now());
        let slots = || !self.memory.slots.all(holds, now).is_empty();
        let slot = |subject| self.guard.slot(subject);
        let mirror = &self.memory.mirror;
        mirror.remembers_any(slot, lacking, at, now) || slots()
    }

    fn remembered(&self) -> Vec<(Slot, (OwnedCharge, State))> {
        let slot = |subject| self.guard.slot(subject);
        let (at, now) = (self.store_time(), self.runtime.now());
        let lacking = self.standing.lock().lacking().clone();
        self.memory.mirror.all(slot, &lacking, at, now)
    }
}
