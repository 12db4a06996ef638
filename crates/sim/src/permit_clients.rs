//! Clients with long requests. They acquire a permit, renew it at any node, release it once or twice, or die
//! with it. Some permits are renewed by the node instead.

use std::sync::Arc;

use tidegate::{Acquired, Permit, PermitRenewer, Request};
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::executor::NodeRuntime;
use crate::history::{DecisionRecord, PermitCall, PermitOp, PermitSession};
use crate::reservation_clients::sealed_id;
use crate::rng::Rng;
use crate::scenario::PermitWork;
use crate::world::{NodeLimiter, NodeStore, World, subject_name};

pub(crate) type NodePermitRenewer = PermitRenewer<NodeStore, NodeRuntime>;
type NodePermit = Permit<NodeStore, NodeRuntime>;

/// A client without a reply renews at another node after this time.
const RENEW_RETRY_AFTER: Nanos = Nanos::from_millis(30);
/// How often a client checks whether its auto-renewed permit is lost.
const LOSS_POLL_INTERVAL: Nanos = Nanos::from_millis(20);

/// The plan of a client.
#[derive(Clone, Copy)]
struct PermitPlan {
    session_time: Nanos,
    /// Whether the client dies without releasing its permit.
    dies: bool,
    /// Whether the client releases its permit twice, or renews it after the release.
    releases_twice: bool,
    renews_late: bool,
    auto_renewed: bool,
}

impl PermitPlan {
    fn of(permits: PermitWork, rng: &mut Rng) -> Self {
        let session_time = rng.between(1, 2 * permits.mean_session.get());
        PermitPlan {
            session_time: Nanos::new(session_time).min(permits.max_session),
            dies: rng.chance(150),
            releases_twice: rng.chance(150),
            renews_late: rng.chance(100),
            auto_renewed: rng.chance(300),
        }
    }
}

/// At the end, when no client is left: the number of permits that can be acquired must be the limit.
pub(crate) async fn final_check(world: World, permits: PermitWork) {
    world.sim.sleep_until(world.scenario.final_check_at()).await;
    let up: Vec<Arc<NodeLimiter>> = world.nodes.lock().iter().flatten().cloned().collect();
    for subject in 0..world.scenario.subjects.len() {
        let (mut acquired, mut denied) = (0, 0);
        // Every node must deny when no permit is left.
        while denied < up.len() && acquired <= 2 * permits.max_open {
            let limiter = &up[(acquired as usize + denied) % up.len()];
            match limiter.acquire(request_of(subject), permits.lasts.duration()).await {
                Ok(Acquired::Open { .. }) => (acquired, denied) = (acquired + 1, 0),
                _ => denied += 1,
            }
        }
        world.history.lock().permits_at_end.push(acquired);
    }
}

fn request_of(subject: usize) -> Request<'static> {
    Request::default().with("user", subject_name(subject))
}

impl World {
    /// Starts a client that acquires a permit.
    pub(crate) fn acquire_permit(&self, subject: usize, permits: PermitWork) {
        let Some((node, limiter)) = self.pick_node(subject) else {
            return;
        };
        let plan = self.sim.with_rng(|rng| PermitPlan::of(permits, rng));
        let index = {
            let mut history = self.history.lock();
            history.requests += 1;
            history.permit_sessions.push(PermitSession {
                subject,
                node,
                sent: self.sim.now(),
                done: None,
                holder: None,
                auto_renewed: plan.auto_renewed,
                calls: Vec::new(),
                client_died: None,
            });
            history.permit_sessions.len() - 1
        };
        self.in_flight.lock()[node] += 1;
        let world = self.clone();
        let renewer = self.renewers.lock()[node].clone();
        self.sim.spawn(Some(node), async move {
            match (plan.auto_renewed, renewer) {
                (true, Some(renewer)) => world.acquire_auto_renewed(index, &renewer, plan).await,
                _ => world.acquire(index, &limiter, permits, plan).await,
            }
        });
    }

    async fn acquire(self, index: usize, limiter: &NodeLimiter, permits: PermitWork, plan: PermitPlan) {
        let subject = self.history.lock().permit_sessions[index].subject;
        let acquired = limiter.acquire(request_of(subject), permits.lasts.duration()).await;
        let ticket = match acquired {
            Ok(Acquired::Open { permit, .. }) => Some(limiter.seal(&permit)),
            Ok(Acquired::Full(full)) => return self.record_full(index, full.source),
            Ok(Acquired::Denied(_)) => None,
            Err(error) => return self.history.lock().errors.push(error.to_string()),
        };
        let Some(text) = ticket else {
            let message = "denied by a rate, but the scenario has none".to_owned();
            return self.history.lock().errors.push(message);
        };
        self.record_acquired(index, sealed_id(&text));
        let client = self.clone();
        self.sim.spawn(None, client.run_session(index, text, permits.lasts, plan));
    }

    /// The same with a permit that the node renews by itself. It ends with the node.
    async fn acquire_auto_renewed(self, index: usize, renewer: &NodePermitRenewer, plan: PermitPlan) {
        let subject = self.history.lock().permit_sessions[index].subject;
        let permit = match renewer.acquire(request_of(subject)).await {
            Ok(Acquired::Open { permit, .. }) => permit,
            Ok(Acquired::Full(full)) => return self.record_full(index, full.source),
            Ok(Acquired::Denied(_)) => return,
            Err(error) => return self.history.lock().errors.push(error.to_string()),
        };
        let node = self.history.lock().permit_sessions[index].node;
        let limiter = self.nodes.lock()[node].clone();
        let text = limiter.map(|limiter| limiter.seal(permit.ticket()));
        self.record_acquired(index, text.as_deref().and_then(sealed_id));
        self.watch_loss(index, &permit, plan.session_time).await;
        let nth = self.record_call(index, node, PermitOp::Release);
        if plan.releases_twice {
            return drop(permit); // released in the background, without a reply
        }
        permit.release().await;
        self.record_reply(index, nth, PermitOp::Release);
    }

    /// Records when an auto-renewed permit is lost, and when it is held again.
    async fn watch_loss(&self, index: usize, permit: &NodePermit, session_time: Nanos) {
        let (until, mut lost) = (self.sim.now().plus(session_time), false);
        while self.sim.now() < until {
            if permit.is_lost() != lost {
                lost = !lost;
                let node = self.history.lock().permit_sessions[index].node;
                let nth = self.record_call(index, node, PermitOp::Renew(!lost));
                self.record_reply(index, nth, PermitOp::Renew(!lost));
            }
            self.sim.sleep(LOSS_POLL_INTERVAL).await;
        }
    }

    /// Runs a client from its permit to its end.
    async fn run_session(self, index: usize, text: String, lasts: Nanos, plan: PermitPlan) {
        let until = self.sim.now().plus(plan.session_time);
        let third = Nanos::new(lasts.get() / 3);
        let home = self.history.lock().permit_sessions[index].node;
        while self.sim.now().plus(third) < until {
            self.sim.sleep(third).await;
            let node = if self.sim.with_rng(|rng| rng.chance(700)) { Some(home) } else { None };
            self.send_call(index, &text, node, PermitOp::Renew(true));
            self.sim.sleep(RENEW_RETRY_AFTER).await;
            if !self.was_replied(index) {
                self.send_call(index, &text, None, PermitOp::Renew(true));
            }
            if self.is_lost(index) {
                return;
            }
        }
        self.sim.sleep_until(until).await;
        if plan.dies {
            self.history.lock().permit_sessions[index].client_died = Some(until);
            return;
        }
        let home = self.sim.with_rng(|rng| rng.chance(600)).then_some(home);
        self.send_call(index, &text, home, PermitOp::Release);
        let later = self.sim.with_rng(|rng| rng.between(5, 300));
        self.sim.sleep(Nanos::from_millis(later)).await;
        // A client without a reply sends the release again.
        if plan.releases_twice || !self.was_replied(index) {
            self.send_call(index, &text, None, PermitOp::Release);
        }
        if plan.renews_late {
            self.send_call(index, &text, None, PermitOp::Renew(true));
        }
    }

    fn was_replied(&self, index: usize) -> bool {
        let history = self.history.lock();
        let last = history.permit_sessions[index].calls.last();
        last.is_none_or(|call| call.done.is_some())
    }

    fn is_lost(&self, index: usize) -> bool {
        let history = self.history.lock();
        let mut calls = history.permit_sessions[index].calls.iter();
        calls.any(|call| call.op == PermitOp::Renew(false) && call.done.is_some())
    }

    /// Sends a permit call to a node, or to any node.
    fn send_call(&self, index: usize, text: &str, node: Option<usize>, op: PermitOp) {
        let Some((node, limiter)) = self.node_or_any(node) else {
            return;
        };
        let nth = self.record_call(index, node, op);
        let (world, text) = (self.clone(), text.to_owned());
        self.sim.spawn(Some(node), async move {
            let ticket = match limiter.unseal(&text) {
                Ok(ticket) => ticket,
                Err(error) => return world.history.lock().errors.push(error.to_string()),
            };
            match op {
                PermitOp::Renew(_) => {
                    // A node that cannot decide is called again, or another node is.
                    if let Ok(renewed) = limiter.renew(&ticket).await {
                        world.record_reply(index, nth, PermitOp::Renew(renewed));
                    }
                }
                PermitOp::Release => {
                    if limiter.release(&ticket).await.is_ok() {
                        world.record_reply(index, nth, PermitOp::Release);
                    }
                }
            }
        });
    }

    fn record_call(&self, index: usize, node: usize, op: PermitOp) -> usize {
        let mut history = self.history.lock();
        let calls = &mut history.permit_sessions[index].calls;
        calls.push(PermitCall { node, sent: self.sim.now(), done: None, op });
        calls.len() - 1
    }

    fn record_reply(&self, index: usize, nth: usize, op: PermitOp) {
        let mut history = self.history.lock();
        let call = &mut history.permit_sessions[index].calls[nth];
        (call.done, call.op) = (Some(self.sim.now()), op);
    }

    fn record_acquired(&self, index: usize, holder: Option<u128>) {
        self.history.lock().permit_sessions[index].holder = holder;
        let acquired = holder.is_some_and(|holder| self.log.has_granted(holder));
        let source = if acquired { Source::Exact } else { Source::Fallback };
        self.record_permit_decision(index, true, source);
    }

    fn record_full(&self, index: usize, source: Source) {
        self.record_permit_decision(index, false, source);
    }

    fn record_permit_decision(&self, index: usize, admitted: bool, source: Source) {
        let (now, store_time) = (self.sim.now(), self.store_time(0));
        let mut history = self.history.lock();
        let session = &mut history.permit_sessions[index];
        session.done = Some(now);
        let record = DecisionRecord {
            sent: session.sent,
            done: now,
            store_time_sent: store_time,
            node: session.node,
            subject: session.subject,
            admitted,
            source,
            at: store_time,
            store_time_done: store_time,
        };
        self.in_flight.lock()[record.node] -= 1;
        history.records.push(record);
    }
}
