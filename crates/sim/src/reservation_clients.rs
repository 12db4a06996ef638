//! Clients whose costs are known only at the end of a call. They reserve an estimate and later settle it, at
//! any node, once, twice, too late or never.

use std::sync::Arc;

use tidegate::{Actual, Request};
use tidegate_core::units::{Cost, Nanos};

use crate::history::{ReservationCall, ReserveReply, SettleCall};
use crate::rng::Rng;
use crate::scenario::ReservationWork;
use crate::world::{NodeLimiter, World, subject_name};

/// How often a node sweeps its reservations.
pub(crate) const RESERVATION_SWEEP_INTERVAL: Nanos = Nanos::from_secs(1);

/// A client without a reply settles again after this time.
const SETTLE_RETRY_AFTER: Nanos = Nanos::from_millis(150);

/// The plan of a call.
#[derive(Clone, Copy)]
struct CallPlan {
    estimate: u64,
    lasts: Nanos,
    used: u64,
    /// The time between the reply and the settlement; `None` for a call that is never settled.
    settle_after: Option<Nanos>,
    settles_twice: bool,
    settles_elsewhere: bool,
}

impl CallPlan {
    fn of(estimates: ReservationWork, rng: &mut Rng) -> Self {
        let ttl_range = estimates.ttl_range;
        let lasts = rng.between(ttl_range.0.get(), ttl_range.1.get());
        let mut estimate = rng.between(1, estimates.max_estimate);
        // In a long window nothing drains, so all calls together must not use it up.
        let max = estimates.max_used_in_long_window.unwrap_or(u64::MAX);
        let used = match rng.below(10) {
            0 => 0,
            1 => {
                estimate = estimate.min(max);
                estimate
            }
            2 | 3 => {
                estimate = rng.between(1, estimate.min(max));
                let more = estimates.max_estimate.div_ceil(4).min(max);
                estimate + rng.between(1, more)
            }
            _ => rng.below(estimate.min(max) + 1),
        };
        let settle_after = match rng.below(20) {
            0..15 => Some(rng.below(lasts * 4 / 5)),
            15 | 16 => Some(rng.between(lasts, lasts * 2)),
            17 => Some(rng.between(lasts * 2, lasts * 5 / 2)),
            _ => None,
        };
        CallPlan {
            estimate,
            lasts: Nanos::new(lasts),
            used,
            settle_after: settle_after.map(Nanos::new),
            settles_twice: rng.chance(120),
            settles_elsewhere: rng.chance(500),
        }
    }
}

/// Sweeps the reservations of a node, as the service does.
pub(crate) async fn run_reservation_sweeps(world: World, limiter: Arc<NodeLimiter>) {
    loop {
        world.sim.sleep(RESERVATION_SWEEP_INTERVAL).await;
        limiter.retry_settlements().await;
    }
}

/// At the end, when all expired estimates are refunded: the whole limit must be available at once. In a long
/// window nothing drains, so one more unit triggers the remaining refunds.
pub(crate) async fn final_check(world: World, estimates: ReservationWork) {
    world.sim.sleep_until(world.scenario.final_check_at()).await;
    let counters = 0..world.scenario.counters();
    let capacities = counters.map(|counter| world.scenario.limit(counter).capacity());
    let plan = |estimate| CallPlan {
        estimate,
        lasts: estimates.ttl_range.1,
        used: 0,
        settle_after: None,
        settles_twice: false,
        settles_elsewhere: false,
    };
    match estimates.max_used_in_long_window {
        None => world.send_reserve(0, plan(capacities.min().unwrap_or(1))),
        Some(_) => {
            for subject in 0..world.scenario.subjects.len() {
                world.send_reserve(subject, plan(1));
            }
        }
    }
}

impl World {
    /// Starts a call.
    pub(crate) fn reserve(&self, subject: usize, estimates: ReservationWork) {
        let plan = self.sim.with_rng(|rng| CallPlan::of(estimates, rng));
        self.send_reserve(subject, plan);
    }

    fn send_reserve(&self, subject: usize, plan: CallPlan) {
        let Some((node, limiter)) = self.pick_node(subject) else {
            return;
        };
        let index = {
            let mut history = self.history.lock();
            history.requests += 1;
            history.reservation_calls.push(ReservationCall {
                subject,
                node,
                sent: self.sim.now(),
                estimate: plan.estimate,
                lasts: plan.lasts,
                used: plan.used,
                reply: None,
                settlements: Vec::new(),
            });
            history.reservation_calls.len() - 1
        };
        self.in_flight.lock()[node] += 1;
        let world = self.clone();
        self.sim.spawn(Some(node), async move {
            let sent_at = (world.sim.now(), world.store_time_of(subject));
            let request = Request { cost: Cost::new(plan.estimate), ..Request::default() };
            let request = request.with("user", subject_name(subject));
            let result = limiter.reserve(request, plan.lasts.duration()).await;
            world.in_flight.lock()[node] -= 1;
            let reservation = match result {
                Ok(reservation) => reservation,
                Err(error) => return world.history.lock().errors.push(error.to_string()),
            };
            let decision = &reservation.decision;
            world.record_decision(decision, sent_at, node, subject).await;
            world.history.lock().reservation_calls[index].reply = Some(ReserveReply {
                done: world.sim.now(),
                id: reservation.token.as_deref().and_then(sealed_id),
                at: decision.at(),
                source: decision.source(),
            });
            if let Some(token) = reservation.token {
                let client = world.clone();
                world.sim.spawn(None, client.settle_when_done(index, token, plan));
            }
        });
    }

    /// Settles a call when it is over.
    async fn settle_when_done(self, index: usize, token: String, plan: CallPlan) {
        let Some(settle_after) = plan.settle_after else {
            return;
        };
        self.sim.sleep(settle_after).await;
        let here = self.history.lock().reservation_calls[index].node;
        let same = (!plan.settles_elsewhere).then_some(here);
        self.send_settle(index, &token, same);
        for _ in 0..2 {
            self.sim.sleep(SETTLE_RETRY_AFTER).await;
            if self.settle_replied(index) {
                break;
            }
            self.send_settle(index, &token, None);
        }
        if plan.settles_twice {
            let later = self.sim.with_rng(|rng| rng.below(plan.lasts.get()));
            self.sim.sleep(Nanos::new(later)).await;
            self.send_settle(index, &token, None);
        }
    }

    fn settle_replied(&self, index: usize) -> bool {
        let history = self.history.lock();
        let last = history.reservation_calls[index].settlements.last();
        last.is_some_and(|settlement| settlement.reply.is_some())
    }

    /// Sends a settlement to a node, or to any node.
    fn send_settle(&self, index: usize, token: &str, node: Option<usize>) {
        let Some((node, limiter)) = self.node_or_any(node) else {
            return;
        };
        let (nth, used) = {
            let mut history = self.history.lock();
            let call = &mut history.reservation_calls[index];
            call.settlements.push(SettleCall { node, sent: self.sim.now(), reply: None });
            (call.settlements.len() - 1, call.used)
        };
        let (world, token) = (self.clone(), token.to_owned());
        self.sim.spawn(Some(node), async move {
            let settled = limiter.settle(&token, &Actual::cost(used)).await;
            let now = world.sim.now();
            let mut history = world.history.lock();
            match settled {
                Ok(settlement) => {
                    let settle_call = &mut history.reservation_calls[index].settlements[nth];
                    settle_call.reply = Some((now, settlement));
                }
                Err(error) => history.errors.push(error.to_string()),
            }
        });
    }
}

/// The id in a sealed token: the sixteen bytes after the first.
pub(crate) fn sealed_id(text: &str) -> Option<u128> {
    u128::from_str_radix(text.get(2..34)?, 16).ok()
}
