//! Slots that a program holds itself: renewed in the background while they are held, free when dropped.
//!
//! One task renews the slots of a keeper, every third of their life, and ends when there are none. Kept
//! true: a slot that was dropped is not taken again, and one that could not be renewed in time says
//! that it is lost, until there is room to take it again. Time and tasks are injected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tidegate_core::request::Request;
use tidegate_core::store::Store;
use tidegate_core::units::Nanos;

use super::Limiter;
use super::acquire::{Acquired, OVERTAKEN, SlotError, USUAL_SLOT};
use super::ticket::Ticket;
use crate::runtime::Runtime;

/// Gives out slots of a limiter and keeps them. Clones are the same.
pub struct Keeper<S, R>(Arc<Inner<S, R>>);

struct Inner<S, R> {
    limiter: Arc<Limiter<S>>,
    runtime: R,
    lasts: Nanos,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    open: BTreeMap<u128, Arc<Holding>>,
    /// Whether there is a task that renews them.
    attended: bool,
}

/// What a slot and whoever renews it share.
struct Holding {
    ticket: Ticket,
    /// Until when the slot is held for certain, in nanoseconds of the runtime.
    until: AtomicU64,
}

impl Holding {
    fn until(&self) -> Nanos {
        Nanos::new(self.until.load(Ordering::Acquire))
    }
}

/// A request that is open. Dropped, it is over: its slots are free, at the latest when they end by
/// themselves.
#[must_use = "a slot that is dropped is free for the next request"]
pub struct Slot<S: Store + 'static, R: Runtime> {
    keeper: Keeper<S, R>,
    holding: Arc<Holding>,
}

impl<S, R> Clone for Keeper<S, R> {
    fn clone(&self) -> Self {
        Keeper(Arc::clone(&self.0))
    }
}

impl<S: Store + 'static, R: Runtime> Keeper<S, R> {
    /// Keeps slots of `limiter` that last ten seconds after they were last renewed: so long those of a
    /// program that dies are taken.
    pub fn new(limiter: Arc<Limiter<S>>, runtime: R) -> Self {
        Keeper::lasting(limiter, runtime, USUAL_SLOT)
    }

    /// The same with slots that last for another span.
    pub fn lasting(limiter: Arc<Limiter<S>>, runtime: R, lasts: Nanos) -> Self {
        Keeper(Arc::new(Inner {
            limiter,
            runtime,
            lasts,
            slots: Mutex::default(),
        }))
    }

    /// Opens a request; see [`Limiter::acquire`]. Cancel-safe: dropped before it has answered, what it
    /// took is freed in the background.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn acquire(&self, request: Request<'_>) -> Result<Acquired<Slot<S, R>>, SlotError> {
        let inner = &*self.0;
        let sent = inner.runtime.now();
        let left = |ticket| self.forgo_soon(ticket);
        let acquired = inner.limiter.acquire_or(request, inner.lasts, left).await?;
        Ok(match acquired {
            Acquired::Open {
                slot,
                decision,
                opened,
            } => Acquired::Open {
                slot: self.keep(slot, sent),
                decision,
                opened,
            },
            Acquired::Refused(decision) => Acquired::Refused(decision),
            Acquired::Full(full) => Acquired::Full(full),
        })
    }

    /// Frees what was taken for a request that nobody waits for any more.
    fn forgo_soon(&self, ticket: Ticket) {
        let (limiter, runtime) = (Arc::clone(&self.0.limiter), self.0.runtime.clone());
        self.0.runtime.spawn(async move {
            limiter.forgo(&ticket).await;
            runtime.sleep(OVERTAKEN).await;
            limiter.forgo(&ticket).await;
        });
    }

    fn keep(&self, ticket: Ticket, sent: Nanos) -> Slot<S, R> {
        let inner = &self.0;
        let holding = Arc::new(Holding {
            until: AtomicU64::new(sent.plus(ticket.lasts).get()),
            ticket,
        });
        let unattended = {
            let mut slots = inner.slots.lock();
            let holder = holding.ticket.holder;
            slots.open.insert(holder, Arc::clone(&holding));
            !std::mem::replace(&mut slots.attended, true)
        };
        if unattended {
            let runtime = inner.runtime.clone();
            inner.runtime.spawn(attend(Arc::downgrade(inner), runtime));
        }
        Slot {
            keeper: self.clone(),
            holding,
        }
    }
}

/// Renews the slots of a keeper as long as there are any.
async fn attend<S: Store + 'static, R: Runtime>(keeper: Weak<Inner<S, R>>, runtime: R) {
    loop {
        let Some(third) = keeper.upgrade().map(|inner| inner.lasts.get() / 3) else {
            return;
        };
        runtime.sleep(Nanos::new(third)).await;
        let Some(inner) = keeper.upgrade() else {
            return;
        };
        let held: Vec<Arc<Holding>> = {
            let mut slots = inner.slots.lock();
            if slots.open.is_empty() {
                slots.attended = false;
                return;
            }
            slots.open.values().cloned().collect()
        };
        inner.renew_all(&held).await;
    }
}

/// Slots that are renewed at once: some 30,000 within two thirds of ten seconds where the store is 100 ms
/// away, and an eighth of the calls that a guard lets be under way.
const AT_ONCE: usize = 512;

impl<S: Store + 'static, R: Runtime> Inner<S, R> {
    /// In rows beside each other, so that one that waits holds up its own row alone.
    async fn renew_all(&self, held: &[Arc<Holding>]) {
        let rows = (0..AT_ONCE.min(held.len())).map(|first| async move {
            for holding in held.iter().skip(first).step_by(AT_ONCE) {
                self.renew(holding).await;
            }
        });
        crate::resilience::join_all(rows).await;
    }

    async fn renew(&self, holding: &Holding) {
        let (ticket, sent) = (&holding.ticket, self.runtime.now());
        let held = match self.limiter.renew(ticket).await {
            Ok(false) if self.keeps(ticket) => self.take_again(ticket).await,
            Ok(held) => Some(held),
            Err(_) => None, // nobody knows: it lasts as long as it was said to
        };
        let until = match held {
            Some(true) => sent.plus(ticket.lasts),
            Some(false) => Nanos::ZERO,
            None => return,
        };
        holding.until.store(until.get(), Ordering::Release);
    }

    /// Takes slots again that are gone. If they were dropped meanwhile, they are free again.
    async fn take_again(&self, ticket: &Ticket) -> Option<bool> {
        let held = self.limiter.take_again(ticket).await.ok()?;
        if held && !self.keeps(ticket) {
            let _ends_by_itself_else = self.limiter.release(ticket).await;
            return Some(false);
        }
        Some(held)
    }

    fn keeps(&self, ticket: &Ticket) -> bool {
        self.slots.lock().open.contains_key(&ticket.holder)
    }
}

impl<S: Store + 'static, R: Runtime> Slot<S, R> {
    /// Whether it may be that others have the slot by now: it could not be renewed in time, and there
    /// was no room to take it again. It may be found again later.
    pub fn is_lost(&self) -> bool {
        self.keeper.0.runtime.now() >= self.holding.until()
    }

    /// What another program may renew or release it by, on any node.
    pub fn ticket(&self) -> &Ticket {
        &self.holding.ticket
    }

    /// Ends the request and waits until the slot is free.
    pub async fn release(self) {
        let (keeper, holding) = (self.keeper.clone(), Arc::clone(&self.holding));
        if keeper.let_go(&holding) {
            let _ends_by_itself_else = keeper.0.limiter.release(&holding.ticket).await;
        }
    }
}

impl<S, R> Keeper<S, R> {
    /// Renews a slot no more; whether it was still kept.
    fn let_go(&self, holding: &Holding) -> bool {
        let mut slots = self.0.slots.lock();
        slots.open.remove(&holding.ticket.holder).is_some()
    }
}

impl<S: Store + 'static, R: Runtime> Drop for Slot<S, R> {
    fn drop(&mut self) {
        if !self.keeper.let_go(&self.holding) {
            return;
        }
        let (keeper, holding) = (self.keeper.clone(), Arc::clone(&self.holding));
        self.keeper.0.runtime.spawn(async move {
            let _ends_by_itself_else = keeper.0.limiter.release(&holding.ticket).await;
        });
    }
}
