//! Telling the store of slots that were given, renewed or given back without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{Held, Hold, Life, Probe, Store, StoreError};
use tidegate_core::units::Nanos;

use super::{Node, SLOTS_AT_ONCE};
use crate::resilience::join::join_all;
use crate::resilience::open_slots::News;
use crate::runtime::Runtime;

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// Whether slots may be asked of the store.
    pub(in crate::resilience) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Acquire)
    }

    /// Whether the store may be asked for a slot. Slots that were renewed without it may have ended there:
    /// when it is back, the others are given the time to tell it of theirs, or it would find room where
    /// all is taken.
    pub(in crate::resilience) fn gives_slots(&self) -> bool {
        let closed = self.guard.closed_at();
        let waits =
            closed > Nanos::ZERO && self.runtime.now().since(closed) < self.settings.recovery;
        self.is_exact() && !waits
    }

    /// The life of the store that is asked about a slot, for `believes_slots`.
    pub(in crate::resilience) fn known_life(&self) -> Option<Life> {
        self.membership.load().epoch
    }

    /// Whether the answer to what was asked in the life `asked` is that of a store which has lost no slot.
    /// One that has would find room where all is taken, and not know who is in.
    pub(in crate::resilience) fn believes_slots(self: &Arc<Self>, asked: Option<Life>) -> bool {
        self.sees_loss();
        // A ping may have heard of the loss before.
        self.is_exact() && self.known_life() == asked
    }

    /// Makes a slot known to the store that is in use, whatever else is open. If it was given back
    /// meanwhile, so it is there.
    pub(in crate::resilience) async fn register(
        &self,
        hold: &Hold<'_>,
    ) -> Result<Held, StoreError> {
        let forced = Hold {
            most: u32::MAX,
            ..*hold
        };
        let (slots, sent) = (&self.memory.slots, self.runtime.now());
        let held = self.guard.hold(&forced).await?;
        if slots.is_open(hold, self.runtime.now()) {
            slots.given(hold, sent);
            return Ok(held);
        }
        if self.guard.release(hold).await.is_ok() {
            slots.left(hold);
        }
        Ok(Held {
            granted: false,
            ..held
        })
    }

    /// Tells the store what it has to hear, if anything.
    pub(super) fn tell_slots(self: &Arc<Self>) {
        let holds = |subject| self.guard.slot(subject).is_some();
        let due = self.memory.slots.due(holds, self.runtime.now());
        if due.is_empty() || !self.is_exact() || self.telling.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.tell_each(&due).await;
            node.telling.store(false, Ordering::Release);
        });
    }

    /// Puts back every slot that is open here; whether the store took them all.
    pub(super) async fn seed_slots(&self) -> bool {
        let holds = |subject| self.guard.slot(subject).is_some();
        let open = self.memory.slots.all(holds, self.runtime.now());
        self.tell_each(&open).await
    }

    async fn tell_each(&self, news: &[News]) -> bool {
        for some in news.chunks(SLOTS_AT_ONCE) {
            let telling = some.iter().map(|news| self.tell_slot(news));
            if join_all(telling).await.contains(&false) {
                return false;
            }
        }
        true
    }

    async fn tell_slot(&self, news: &News) -> bool {
        let hold = news.hold();
        if !news.leaving {
            return self.register(&hold).await.is_ok();
        }
        let told = self.guard.release(&hold).await.is_ok();
        if told {
            self.memory.slots.left(&hold);
        }
        told
    }
}
