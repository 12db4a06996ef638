//! Clients that are open for a while: they take a slot, renew it at any node, give it back once or twice, or
//! die with it. Some leave that to a keeper on the node.

use std::sync::Arc;

use tidegate::{Acquired, Keeper, Request, Slot};
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use crate::calls::id_in;
use crate::executor::NodeRuntime;
use crate::history::{Errand, Record, Stay, Visit};
use crate::rng::Rng;
use crate::scenario::{LONGEST_STAY, Places};
use crate::world::{NodeLimiter, NodeStore, World, name};

pub(crate) type NodeKeeper = Keeper<NodeStore, NodeRuntime>;
type Kept = Slot<NodeStore, NodeRuntime>;

/// When a client that heard nothing renews at another node.
const ASKS_AGAIN: Nanos = Nanos::from_millis(30);
/// How often a client looks whether a slot that is kept for it is lost.
const LOOKS: Nanos = Nanos::from_millis(20);

/// What a client is going to do.
#[derive(Clone, Copy)]
struct Plan {
    stay: Nanos,
    /// Whether it goes away without a word.
    dies: bool,
    /// Whether it gives its slot back twice, or renews it after that.
    releases_twice: bool,
    renews_late: bool,
    kept: bool,
}

impl Plan {
    fn of(places: Places, rng: &mut Rng) -> Self {
        let stay = rng.between(1, 2 * places.stay.get());
        Plan {
            stay: Nanos::new(stay).min(LONGEST_STAY),
            dies: rng.chance(150),
            releases_twice: rng.chance(150),
            renews_late: rng.chance(100),
            kept: rng.chance(300),
        }
    }
}

/// At the end, when nobody is left: as many can be had as there are.
pub(crate) async fn look_at_last(world: World, places: Places) {
    world.sim.sleep_until(world.scenario.last_look()).await;
    let up: Vec<Arc<NodeLimiter>> = world.nodes.lock().iter().flatten().cloned().collect();
    for subject in 0..world.scenario.subjects.len() {
        let (mut filled, mut refused) = (0, 0);
        // A node that is asked when none is left says so; and so do the others.
        while refused < up.len() && filled <= 2 * places.most {
            let limiter = &up[(filled as usize + refused) % up.len()];
            match limiter.acquire(who(subject), places.lasts).await {
                Ok(Acquired::Open { .. }) => (filled, refused) = (filled + 1, 0),
                _ => refused += 1,
            }
        }
        world.history.lock().filled.push(filled);
    }
}

fn who(subject: usize) -> Request<'static> {
    Request::default().with("user", name(subject))
}

impl World {
    /// Somebody wants to be open.
    pub(crate) fn open(&self, subject: usize, places: Places) {
        let Some((node, limiter)) = self.route_to(subject) else {
            return;
        };
        let plan = self.sim.draw(|rng| Plan::of(places, rng));
        let place = {
            let mut history = self.history.lock();
            history.asked += 1;
            history.stays.push(Stay {
                subject,
                node,
                sent: self.sim.now(),
                done: None,
                holder: None,
                kept: plan.kept,
                visits: Vec::new(),
                died: None,
            });
            history.stays.len() - 1
        };
        self.under_way.lock()[node] += 1;
        let world = self.clone();
        let keeper = self.keepers.lock()[node].clone();
        self.sim.spawn(Some(node), async move {
            match (plan.kept, keeper) {
                (true, Some(keeper)) => world.keep(place, &keeper, plan).await,
                _ => world.acquire(place, &limiter, places, plan).await,
            }
        });
    }

    async fn acquire(self, place: usize, limiter: &NodeLimiter, places: Places, plan: Plan) {
        let subject = self.history.lock().stays[place].subject;
        let acquired = limiter.acquire(who(subject), places.lasts).await;
        let ticket = match acquired {
            Ok(Acquired::Open { slot, .. }) => Some(limiter.seal(&slot)),
            Ok(Acquired::Full(full)) => return self.full(place, full.source),
            Ok(Acquired::Refused(_)) => None,
            Err(error) => return self.history.lock().failed.push(error.to_string()),
        };
        let Some(text) = ticket else {
            let refused = "a rate refuses, and there is none".to_owned();
            return self.history.lock().failed.push(refused);
        };
        self.opened(place, id_in(&text));
        let client = self.clone();
        self.sim
            .spawn(None, client.stay(place, text, places.lasts, plan));
    }

    /// The same with a slot that the node renews by itself. It ends with the node.
    async fn keep(self, place: usize, keeper: &NodeKeeper, plan: Plan) {
        let subject = self.history.lock().stays[place].subject;
        let slot = match keeper.acquire(who(subject)).await {
            Ok(Acquired::Open { slot, .. }) => slot,
            Ok(Acquired::Full(full)) => return self.full(place, full.source),
            Ok(Acquired::Refused(_)) => return,
            Err(error) => return self.history.lock().failed.push(error.to_string()),
        };
        let node = self.history.lock().stays[place].node;
        let limiter = self.nodes.lock()[node].clone();
        let text = limiter.map(|limiter| limiter.seal(slot.ticket()));
        self.opened(place, text.as_deref().and_then(id_in));
        self.watch(place, &slot, plan.stay).await;
        let nth = self.sets_out(place, node, Errand::Release);
        if plan.releases_twice {
            return drop(slot); // in the background: nobody hears when it is done
        }
        slot.release().await;
        self.returns(place, nth, Errand::Release);
    }

    /// Notes when a slot that is kept is lost, and when it is found again.
    async fn watch(&self, place: usize, slot: &Kept, stay: Nanos) {
        let (until, mut lost) = (self.sim.now().plus(stay), false);
        while self.sim.now() < until {
            if slot.is_lost() != lost {
                lost = !lost;
                let node = self.history.lock().stays[place].node;
                let nth = self.sets_out(place, node, Errand::Renew(!lost));
                self.returns(place, nth, Errand::Renew(!lost));
            }
            self.sim.sleep(LOOKS).await;
        }
    }

    /// A client that has a slot, to its end.
    async fn stay(self, place: usize, text: String, lasts: Nanos, plan: Plan) {
        let until = self.sim.now().plus(plan.stay);
        let third = Nanos::new(lasts.get() / 3);
        let home = self.history.lock().stays[place].node;
        while self.sim.now().plus(third) < until {
            self.sim.sleep(third).await;
            let node = match self.sim.draw(|rng| rng.chance(700)) {
                true => Some(home),
                false => None,
            };
            self.visit(place, &text, node, Errand::Renew(true));
            self.sim.sleep(ASKS_AGAIN).await;
            if !self.was_answered(place) {
                self.visit(place, &text, None, Errand::Renew(true));
            }
            if self.is_lost(place) {
                return;
            }
        }
        self.sim.sleep_until(until).await;
        if plan.dies {
            self.history.lock().stays[place].died = Some(until);
            return;
        }
        let home = self.sim.draw(|rng| rng.chance(600)).then_some(home);
        self.visit(place, &text, home, Errand::Release);
        let later = self.sim.draw(|rng| rng.between(5, 300));
        self.sim.sleep(Nanos::from_millis(later)).await;
        // Who heard nothing says it again.
        if plan.releases_twice || !self.was_answered(place) {
            self.visit(place, &text, None, Errand::Release);
        }
        if plan.renews_late {
            self.visit(place, &text, None, Errand::Renew(true));
        }
    }

    fn was_answered(&self, place: usize) -> bool {
        let history = self.history.lock();
        let last = history.stays[place].visits.last();
        last.is_none_or(|visit| visit.done.is_some())
    }

    fn is_lost(&self, place: usize) -> bool {
        let history = self.history.lock();
        let mut visits = history.stays[place].visits.iter();
        visits.any(|visit| visit.what == Errand::Renew(false) && visit.done.is_some())
    }

    /// Goes to a node, or to any, with a slot.
    fn visit(&self, place: usize, text: &str, node: Option<usize>, what: Errand) {
        let Some((node, limiter)) = self.node_or_any(node) else {
            return;
        };
        let nth = self.sets_out(place, node, what);
        let (world, text) = (self.clone(), text.to_owned());
        self.sim.spawn(Some(node), async move {
            let ticket = match limiter.unseal(&text) {
                Ok(ticket) => ticket,
                Err(error) => return world.history.lock().failed.push(error.to_string()),
            };
            match what {
                Errand::Renew(_) => {
                    // Who cannot say is asked again, or another.
                    if let Ok(held) = limiter.renew(&ticket).await {
                        world.returns(place, nth, Errand::Renew(held));
                    }
                }
                Errand::Release => {
                    if limiter.release(&ticket).await.is_ok() {
                        world.returns(place, nth, Errand::Release);
                    }
                }
            }
        });
    }

    fn sets_out(&self, place: usize, node: usize, what: Errand) -> usize {
        let mut history = self.history.lock();
        let visits = &mut history.stays[place].visits;
        visits.push(Visit {
            node,
            sent: self.sim.now(),
            done: None,
            what,
        });
        visits.len() - 1
    }

    fn returns(&self, place: usize, nth: usize, what: Errand) {
        let mut history = self.history.lock();
        let visit = &mut history.stays[place].visits[nth];
        (visit.done, visit.what) = (Some(self.sim.now()), what);
    }

    fn opened(&self, place: usize, holder: Option<u128>) {
        self.history.lock().stays[place].holder = holder;
        let given = holder.is_some_and(|holder| self.books.has_given(holder));
        let source = if given {
            Source::Exact
        } else {
            Source::Fallback
        };
        self.answered(place, true, source);
    }

    fn full(&self, place: usize, source: Source) {
        self.answered(place, false, source);
    }

    fn answered(&self, place: usize, admitted: bool, source: Source) {
        let (now, truth) = (self.sim.now(), self.time(0));
        let mut history = self.history.lock();
        let stay = &mut history.stays[place];
        stay.done = Some(now);
        let record = Record {
            sent: stay.sent,
            done: now,
            began: truth,
            node: stay.node,
            subject: stay.subject,
            admitted,
            source,
            at: truth,
            truth,
        };
        self.under_way.lock()[record.node] -= 1;
        history.records.push(record);
    }
}
