//! Permits that a program holds itself: renewed in the background while they are held, released when dropped.
//!
//! One task renews all permits of a renewer, every third of their TTL, and ends when there are none. Invariant: a
//! dropped permit is not reacquired, and a permit that could not be renewed in time reports that it is lost until
//! there is room to reacquire it. Time and tasks are injected.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::store::Store;
use tidegate_core::units::Nanos;
use tidegate_rules::request::Request;

use super::Limiter;
use super::acquire::{AcquireError, Acquired, CANCEL_RETRY_AFTER, DEFAULT_PERMIT_TTL};
use super::ticket::Ticket;
use crate::runtime::{Runtime, join_all};

/// Acquires permits of a limiter and renews them. Clones share one state.
pub struct PermitRenewer<S, R>(Arc<RenewerInner<S, R>>);

struct RenewerInner<S, R> {
    limiter: Arc<Limiter<S>>,
    runtime: R,
    ttl: Nanos,
    permits: Mutex<RenewedPermits>,
}

#[derive(Default)]
struct RenewedPermits {
    open: BTreeMap<u128, Arc<PermitState>>,
    /// Whether a renewal task is running.
    task_running: bool,
}

/// The state that a permit shares with the renewal task.
struct PermitState {
    ticket: Ticket,
    /// Until when the permit is certainly held, in nanoseconds of the runtime.
    until: AtomicU64,
}

impl PermitState {
    fn until(&self) -> Nanos {
        Nanos::new(self.until.load(Ordering::Acquire))
    }
}

/// An open request. Dropping it ends the request: its permits are released, or expire if the release does not
/// reach the store.
#[must_use = "a dropped permit is free for the next request"]
pub struct Permit<S: Store + 'static, R: Runtime> {
    renewer: PermitRenewer<S, R>,
    state: Arc<PermitState>,
}

impl<S, R> fmt::Debug for PermitRenewer<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitRenewer").finish_non_exhaustive()
    }
}

impl<S: Store + 'static, R: Runtime> fmt::Debug for Permit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("ticket", &self.state.ticket).finish_non_exhaustive()
    }
}

impl<S, R> Clone for PermitRenewer<S, R> {
    fn clone(&self) -> Self {
        PermitRenewer(Arc::clone(&self.0))
    }
}

impl<S: Store + 'static, R: Runtime> PermitRenewer<S, R> {
    /// Renews permits of `limiter` with a TTL of ten seconds. The permits of a program that dies stay taken for
    /// that long.
    pub fn new(limiter: Arc<Limiter<S>>, runtime: R) -> Self {
        PermitRenewer::with_ttl(limiter, runtime, DEFAULT_PERMIT_TTL)
    }

    /// As `new`, with permits of another TTL.
    pub fn with_ttl(limiter: Arc<Limiter<S>>, runtime: R, ttl: Duration) -> Self {
        let ttl = ttl.into();
        PermitRenewer(Arc::new(RenewerInner { limiter, runtime, ttl, permits: Mutex::default() }))
    }

    /// Opens a request; see [`Limiter::acquire`]. Cancel-safe: dropped before it has finished, the call releases
    /// what it acquired in the background.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn acquire(&self, request: Request<'_>) -> Result<Acquired<Permit<S, R>>, AcquireError> {
        let inner = &*self.0;
        let sent = inner.runtime.now();
        let on_cancel = |ticket| self.cancel_in_background(ticket);
        let acquired = inner.limiter.acquire_with_cancel(request, inner.ttl.duration(), on_cancel).await?;
        Ok(match acquired {
            Acquired::Open { permit: ticket, decision, limits } => {
                Acquired::Open { permit: self.track(ticket, sent), decision, limits }
            }
            Acquired::Denied(decision) => Acquired::Denied(decision),
            Acquired::Full(full) => Acquired::Full(full),
        })
    }

    /// Releases the permits of a cancelled request.
    fn cancel_in_background(&self, ticket: Ticket) {
        let (limiter, runtime) = (Arc::clone(&self.0.limiter), self.0.runtime.clone());
        self.0.runtime.spawn(async move {
            limiter.cancel(&ticket).await;
            runtime.sleep(CANCEL_RETRY_AFTER.into()).await;
            limiter.cancel(&ticket).await;
        });
    }

    fn track(&self, ticket: Ticket, sent: Nanos) -> Permit<S, R> {
        let inner = &self.0;
        let state = Arc::new(PermitState { until: AtomicU64::new(sent.plus(ticket.ttl).get()), ticket });
        let needs_task = {
            let mut permits = inner.permits.lock();
            let holder = state.ticket.holder;
            permits.open.insert(holder, Arc::clone(&state));
            !std::mem::replace(&mut permits.task_running, true)
        };
        if needs_task {
            let runtime = inner.runtime.clone();
            inner.runtime.spawn(run_renewals(Arc::downgrade(inner), runtime));
        }
        Permit { renewer: self.clone(), state }
    }

    /// Stops renewing a permit. Returns whether it was still tracked.
    fn untrack(&self, state: &PermitState) -> bool {
        let mut permits = self.0.permits.lock();
        permits.open.remove(&state.ticket.holder).is_some()
    }
}

/// Renews the permits of a renewer as long as there are any.
async fn run_renewals<S: Store + 'static, R: Runtime>(renewer: Weak<RenewerInner<S, R>>, runtime: R) {
    loop {
        let Some(third) = renewer.upgrade().map(|inner| inner.ttl.get() / 3) else {
            return;
        };
        runtime.sleep(Nanos::new(third)).await;
        let Some(inner) = renewer.upgrade() else {
            return;
        };
        let states: Vec<Arc<PermitState>> = {
            let mut permits = inner.permits.lock();
            if permits.open.is_empty() {
                permits.task_running = false;
                return;
            }
            permits.open.values().cloned().collect()
        };
        inner.renew_all(&states).await;
    }
}

/// Renewals in flight at once: enough for some 30,000 permits within two thirds of ten seconds where the store is
/// 100 ms away, and an eighth of the calls that a guard allows in flight.
const MAX_CONCURRENT_RENEWALS: usize = 512;

impl<S: Store + 'static, R: Runtime> RenewerInner<S, R> {
    /// Renews permits in rows that run concurrently, so that a slow renewal holds up its own row alone.
    async fn renew_all(&self, states: &[Arc<PermitState>]) {
        let rows = (0..MAX_CONCURRENT_RENEWALS.min(states.len())).map(|first| async move {
            for state in states.iter().skip(first).step_by(MAX_CONCURRENT_RENEWALS) {
                self.renew(state).await;
            }
        });
        join_all(rows).await;
    }

    async fn renew(&self, state: &PermitState) {
        let (ticket, sent) = (&state.ticket, self.runtime.now());
        let renewed = match self.limiter.renew(ticket).await {
            Ok(false) if self.is_tracked(ticket) => self.reacquire(ticket).await,
            Ok(held) => Some(held),
            Err(_) => None, // the state is unknown: the permit lasts until its last known expiry
        };
        let until = match renewed {
            Some(true) => sent.plus(ticket.ttl),
            Some(false) => Nanos::ZERO,
            None => return,
        };
        state.until.store(until.get(), Ordering::Release);
    }

    /// Reacquires lost permits. If they were dropped meanwhile, they are released again.
    async fn reacquire(&self, ticket: &Ticket) -> Option<bool> {
        let reacquired = self.limiter.reacquire(ticket).await.ok()?;
        if reacquired && !self.is_tracked(ticket) {
            let _expires_otherwise = self.limiter.release(ticket).await;
            return Some(false);
        }
        Some(reacquired)
    }

    fn is_tracked(&self, ticket: &Ticket) -> bool {
        self.permits.lock().open.contains_key(&ticket.holder)
    }
}

impl<S: Store + 'static, R: Runtime> Permit<S, R> {
    /// Whether other requests may have the permit by now: it could not be renewed in time, and there was no
    /// room to reacquire it. It may be reacquired later.
    pub fn is_lost(&self) -> bool {
        self.renewer.0.runtime.now() >= self.state.until()
    }

    /// The ticket by which another program may renew or release the permit, on any node.
    pub fn ticket(&self) -> &Ticket {
        &self.state.ticket
    }

    /// Ends the request and waits until the permit is released. Dropped before it has finished, the call may leave a
    /// permit that then expires.
    pub async fn release(self) {
        let (renewer, state) = (self.renewer.clone(), Arc::clone(&self.state));
        if renewer.untrack(&state) {
            let _expires_otherwise = renewer.0.limiter.release(&state.ticket).await;
        }
    }
}

impl<S: Store + 'static, R: Runtime> Drop for Permit<S, R> {
    fn drop(&mut self) {
        if !self.renewer.untrack(&self.state) {
            return;
        }
        let (renewer, state) = (self.renewer.clone(), Arc::clone(&self.state));
        self.renewer.0.runtime.spawn(async move {
            let _expires_otherwise = renewer.0.limiter.release(&state.ticket).await;
        });
    }
}
