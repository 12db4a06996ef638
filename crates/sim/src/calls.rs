//! Clients whose calls cost what is known only at the end: they reserve an estimate and say later what was
//! used, at any node, once, twice, too late or never.

use std::sync::Arc;

use tidegate::{Actual, Request};
use tidegate_core::units::{Cost, Nanos};

use crate::history::{Call, Reply, Settling};
use crate::rng::Rng;
use crate::scenario::Estimates;
use crate::world::{NodeLimiter, World, name};

/// How often a node looks after its reservations.
pub(crate) const TEND_EVERY: Nanos = Nanos::from_secs(1);

/// When a client that heard nothing says again what was used.
const ASKS_AGAIN: Nanos = Nanos::from_millis(150);

/// What a call is going to be.
#[derive(Clone, Copy)]
struct Plan {
    estimate: u64,
    lasts: Nanos,
    used: u64,
    /// How long after the answer it is settled, if ever.
    after: Option<Nanos>,
    twice: bool,
    elsewhere: bool,
}

impl Plan {
    fn of(estimates: Estimates, rng: &mut Rng) -> Self {
        let lives = estimates.lives;
        let lasts = rng.between(lives.0.get(), lives.1.get());
        let mut estimate = rng.between(1, estimates.largest);
        // Where nothing drains, all calls together must not use the window up.
        let most = estimates.lasting.unwrap_or(u64::MAX);
        let used = match rng.below(10) {
            0 => 0,
            1 => {
                estimate = estimate.min(most);
                estimate
            }
            2 | 3 => {
                estimate = rng.between(1, estimate.min(most));
                let more = estimates.largest.div_ceil(4).min(most);
                estimate + rng.between(1, more)
            }
            _ => rng.below(estimate.min(most) + 1),
        };
        let after = match rng.below(20) {
            0..15 => Some(rng.below(lasts * 4 / 5)),
            15 | 16 => Some(rng.between(lasts, lasts * 2)),
            17 => Some(rng.between(lasts * 2, lasts * 5 / 2)),
            _ => None,
        };
        Plan {
            estimate,
            lasts: Nanos::new(lasts),
            used,
            after: after.map(Nanos::new),
            twice: rng.chance(120),
            elsewhere: rng.chance(500),
        }
    }
}

/// Looks after what was reserved at a node, as the service does.
pub(crate) async fn tend(world: World, limiter: Arc<NodeLimiter>) {
    loop {
        world.sim.sleep(TEND_EVERY).await;
        limiter.tend_reservations().await;
    }
}

/// At the end, when everything has come back that had to: all of a limit can be had at once; and where
/// nothing drains, whatever was left behind comes back with one more unit.
pub(crate) async fn look_at_last(world: World, estimates: Estimates) {
    world.sim.sleep_until(world.scenario.last_look()).await;
    let counters = 0..world.scenario.counters();
    let capacities = counters.map(|counter| world.scenario.limit(counter).capacity());
    let plan = |estimate| Plan {
        estimate,
        lasts: estimates.lives.1,
        used: 0,
        after: None,
        twice: false,
        elsewhere: false,
    };
    match estimates.lasting {
        None => world.call(0, plan(capacities.min().unwrap_or(1))),
        Some(_) => {
            for subject in 0..world.scenario.subjects.len() {
                world.call(subject, plan(1));
            }
        }
    }
}

impl World {
    /// Somebody begins a call.
    pub(crate) fn reserve(&self, subject: usize, estimates: Estimates) {
        let plan = self.sim.draw(|rng| Plan::of(estimates, rng));
        self.call(subject, plan);
    }

    fn call(&self, subject: usize, plan: Plan) {
        let Some((node, limiter)) = self.route_to(subject) else {
            return;
        };
        let place = {
            let mut history = self.history.lock();
            history.asked += 1;
            history.calls.push(Call {
                subject,
                node,
                sent: self.sim.now(),
                estimate: plan.estimate,
                lasts: plan.lasts,
                used: plan.used,
                reply: None,
                settlements: Vec::new(),
            });
            history.calls.len() - 1
        };
        self.under_way.lock()[node] += 1;
        let world = self.clone();
        self.sim.spawn(Some(node), async move {
            let asked = (world.sim.now(), world.time_of(subject));
            let request = Request {
                cost: Cost::new(plan.estimate),
                ..Request::default()
            };
            let request = request.with("user", name(subject));
            let answer = limiter.reserve(request, plan.lasts).await;
            world.under_way.lock()[node] -= 1;
            let reservation = match answer {
                Ok(reservation) => reservation,
                Err(error) => return world.history.lock().failed.push(error.to_string()),
            };
            let decision = &reservation.decision;
            world.decided(decision, asked, node, subject).await;
            world.history.lock().calls[place].reply = Some(Reply {
                done: world.sim.now(),
                id: reservation.token.as_deref().and_then(id_in),
                at: decision.at(),
                source: decision.source(),
            });
            if let Some(token) = reservation.token {
                let client = world.clone();
                world
                    .sim
                    .spawn(None, client.say_what_was_used(place, token, plan));
            }
        });
    }

    /// The client when its call is over.
    async fn say_what_was_used(self, place: usize, token: String, plan: Plan) {
        let Some(after) = plan.after else {
            return;
        };
        self.sim.sleep(after).await;
        let here = self.history.lock().calls[place].node;
        let same = (!plan.elsewhere).then_some(here);
        self.settle(place, &token, same);
        for _ in 0..2 {
            self.sim.sleep(ASKS_AGAIN).await;
            if self.was_settled(place) {
                break;
            }
            self.settle(place, &token, None);
        }
        if plan.twice {
            let later = self.sim.draw(|rng| rng.below(plan.lasts.get()));
            self.sim.sleep(Nanos::new(later)).await;
            self.settle(place, &token, None);
        }
    }

    fn was_settled(&self, place: usize) -> bool {
        let history = self.history.lock();
        let last = history.calls[place].settlements.last();
        last.is_some_and(|said| said.answer.is_some())
    }

    /// Says what was used, at a node or at any.
    fn settle(&self, place: usize, token: &str, node: Option<usize>) {
        let Some((node, limiter)) = self.node_or_any(node) else {
            return;
        };
        let (nth, used) = {
            let mut history = self.history.lock();
            let call = &mut history.calls[place];
            call.settlements.push(Settling {
                node,
                sent: self.sim.now(),
                answer: None,
            });
            (call.settlements.len() - 1, call.used)
        };
        let (world, token) = (self.clone(), token.to_owned());
        self.sim.spawn(Some(node), async move {
            let settled = limiter.settle(&token, &Actual::cost(used)).await;
            let now = world.sim.now();
            let mut history = world.history.lock();
            match settled {
                Ok(settlement) => {
                    let said = &mut history.calls[place].settlements[nth];
                    said.answer = Some((now, settlement));
                }
                Err(error) => history.failed.push(error.to_string()),
            }
        });
    }
}

/// What a sealed text names: the sixteen bytes after its first.
pub(crate) fn id_in(text: &str) -> Option<u128> {
    u128::from_str_radix(text.get(2..34)?, 16).ok()
}
