//! One node's way to the store: everything takes time, some of it gets lost, and the node hears only
//! what comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::algorithms::{Limit, Retry, State, Verdict};
use tidegate_core::store::{
    Beat, Charge, ChargeSet, Granted, Held, Hold, Inspection, Life, NodeId, Outcome, Probe, Refund,
    Refunded, Reserve, Seed, Settle, Settled, Slot, Source, Store, StoreError, Vitals,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::books::{Books, Deed, Entry, Step, Verb};
use super::cluster::{Elsewhere, Seat};
use super::{Intent, Model, SharedModel};
use crate::executor::Sim;
use crate::variant::Variant;

pub(super) type Answer<T> = Result<T, StoreError>;

/// When a connection that hears nothing is given up: silent connections are replaced within this.
pub const GIVEN_UP: Nanos = Nanos::from_secs(2);
/// How often those who wait for a hung store look again.
const LOOK_AGAIN: Nanos = Nanos::from_millis(20);

/// No process has this number.
const UNCONNECTED: u64 = u64::MAX;

/// A charge that a node sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// When.
    pub at: Nanos,
    /// By whom.
    pub node: usize,
    /// To which line of stores.
    pub line: usize,
}

/// One node's connection.
#[derive(Clone)]
pub struct Link {
    pub(super) sim: Sim,
    pub(super) model: SharedModel,
    line: usize,
    /// Its place among others, unless it is the only store.
    seat: Option<Seat>,
    pub(super) node: usize,
    /// How far the node's clock is from the store's, for those who use the wrong one.
    skew: Nanos,
    pub(super) variant: Variant,
    life: Arc<AtomicU64>,
    /// The process it is connected to.
    process: Arc<AtomicU64>,
    /// Beats that were answered.
    beats: Arc<AtomicU64>,
    sent: Arc<Mutex<Vec<Sent>>>,
    /// What the node has seen, for those who misuse it.
    seen: Arc<Mutex<BTreeMap<u128, (Limit, State)>>>,
    /// What was done for the node.
    pub(super) books: Books,
    /// How much farther the store is than the next room, one way.
    far: Nanos,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("connection refused")]
    Refused,
    #[error("connection given up")]
    Silence,
    #[error("{0:?}")]
    Elsewhere(Elsewhere),
}

fn unavailable(why: Trouble) -> StoreError {
    StoreError::Unavailable {
        waited: Nanos::ZERO,
        source: Box::new(why),
    }
}

impl Link {
    /// The way of `node` to the store.
    pub fn new(
        sim: &Sim,
        model: &SharedModel,
        node: usize,
        skew: Nanos,
        variant: Variant,
        sent: &Arc<Mutex<Vec<Sent>>>,
    ) -> Self {
        Link {
            sim: sim.clone(),
            model: Arc::clone(model),
            line: 0,
            seat: None,
            node,
            skew,
            variant,
            life: Arc::default(),
            process: Arc::new(AtomicU64::new(UNCONNECTED)),
            beats: Arc::default(),
            sent: Arc::clone(sent),
            seen: Arc::default(),
            books: Books::default(),
            far: Nanos::ZERO,
        }
    }

    /// The same, `far` from the store, and written down in `books`.
    #[must_use]
    pub fn from_afar(self, far: Nanos, books: &Books) -> Link {
        let books = books.clone();
        Link { far, books, ..self }
    }

    /// The same node's way to another store.
    pub(super) fn to(&self, model: &SharedModel, line: usize, seat: Option<Seat>) -> Link {
        Link {
            model: Arc::clone(model),
            line,
            seat,
            life: Arc::default(),
            process: Arc::new(AtomicU64::new(UNCONNECTED)),
            beats: Arc::default(),
            seen: Arc::default(),
            ..self.clone()
        }
    }

    /// There and back with a call that speaks of some subjects. Who does not have them says so.
    pub(super) async fn trip_for<T>(
        &self,
        subjects: Vec<Fingerprint>,
        run: impl FnOnce(&mut Model, Nanos) -> T + Send,
    ) -> Answer<T> {
        let seat = self.seat.as_ref();
        let served = self.trip(|model, now| {
            let serves = seat.map_or(Ok(()), |seat| seat.serves(&subjects));
            serves.map(|()| run(model, now))
        });
        match served.await? {
            Ok(answer) => Ok(answer),
            Err(elsewhere) => {
                if let (Some(seat), Elsewhere::Moved(slot)) = (seat, elsewhere) {
                    seat.corrected(slot);
                }
                Err(unavailable(Trouble::Elsewhere(elsewhere)))
            }
        }
    }

    /// There and back, with everything that can happen on the way.
    async fn trip<T>(&self, run: impl FnOnce(&mut Model, Nanos) -> T + Send) -> Answer<T> {
        self.wait_there().await?;
        if self.lost(|weather| weather.requests_lost) {
            return self.silence().await;
        }
        let (answer, life, down) = {
            let mut model = self.model.lock();
            let mut now = model.time(self.sim.now());
            if self.variant == Variant::NodeClock {
                now = now.plus(self.skew);
            }
            let life = if model.tells_life { model.life } else { 0 };
            (run(&mut model, now), life, model.weather.down)
        };
        if down || self.lost(|weather| weather.answers_lost) {
            return self.silence().await;
        }
        self.leg().await;
        self.be_late().await?;
        self.life.store(life, Ordering::Relaxed);
        Ok(answer)
    }

    /// A connection is to one process: what is sent on it when that has ended reaches no other, and who
    /// connects again hears first whom to.
    async fn wait_there(&self) -> Answer<()> {
        let before = self.process.load(Ordering::Relaxed);
        self.leg().await;
        loop {
            let (weather, process, life) = {
                let model = self.model.lock();
                let life = if model.tells_life { model.life } else { 0 };
                (model.weather, model.process, life)
            };
            if weather.down {
                return Err(unavailable(Trouble::Refused));
            }
            if weather.hung {
                self.sim.sleep(LOOK_AGAIN).await;
                continue;
            }
            self.process.store(process, Ordering::Relaxed);
            if before == process || before == UNCONNECTED {
                return Ok(());
            }
            self.life.store(life, Ordering::Relaxed);
            return Err(unavailable(Trouble::Refused));
        }
    }

    async fn leg(&self) {
        let weather = self.model.lock().weather;
        let spread = self.sim.draw(|rng| rng.below(weather.spread.get() + 1));
        self.sim
            .sleep(weather.fastest.plus(Nanos::new(spread)).plus(self.far))
            .await;
    }

    /// The reply is late, if the weather says so.
    async fn be_late(&self) -> Answer<()> {
        let late = self.model.lock().weather.lateness;
        let here = late.node.is_none_or(|node| node == self.node);
        if !here || late.per_mille == 0 || !self.sim.draw(|rng| rng.chance(late.per_mille)) {
            return Ok(());
        }
        if self.variant == Variant::LosesLateReplies {
            return self.silence().await;
        }
        let more = late.max.since(late.min).get() + 1;
        let more = self.sim.draw(|rng| rng.below(more));
        self.sim.sleep(late.min.plus(Nanos::new(more))).await;
        Ok(())
    }

    /// Writes down what the store does for this node now, and was asked when.
    pub(super) fn book(&self, counter: u128, sent: Nanos, at: Option<Nanos>, deed: Deed) -> usize {
        self.books.write(Entry {
            node: self.node,
            counter,
            sent,
            at,
            heard: None,
            deed,
        })
    }

    /// Writes down charges that were made.
    fn book_all(&self, set: &ChargeSet<'_>, sent: Nanos, at: Nanos) {
        for charge in &set.charges {
            let deed = Deed::Charged(charge.cost.get());
            self.book(charge.counter(), sent, Some(at), deed);
        }
    }

    fn lost(&self, of: impl Fn(&super::Weather) -> u32) -> bool {
        let per_mille = of(&self.model.lock().weather);
        per_mille > 0 && self.sim.draw(|rng| rng.chance(per_mille))
    }

    async fn silence<T>(&self) -> Answer<T> {
        self.sim.sleep(GIVEN_UP).await;
        Err(unavailable(Trouble::Silence))
    }

    fn remember(&self, set: &ChargeSet<'_>, outcome: &Outcome) {
        let mut seen = self.seen.lock();
        for (charge, now) in set.charges.iter().zip(&outcome.seen) {
            let known = (charge.limit.as_ref().clone(), now.state.clone());
            seen.insert(charge.counter(), known);
        }
    }

    /// A debt that includes this node's part of what the store had when it was last seen.
    fn with_the_seed<'a>(&self, charge: &Charge<'a>) -> Charge<'a> {
        let seen = self.seen.lock();
        let known = seen.get(&charge.counter());
        let used = known.map_or(0, |(limit, state)| held(limit, state));
        let cost = charge.cost.get() + used / 2;
        Charge {
            cost: Cost::new(cost).unwrap_or(charge.cost),
            ..charge.clone()
        }
    }
}

pub(super) fn subjects(set: &ChargeSet<'_>) -> Vec<Fingerprint> {
    set.charges.iter().map(|charge| charge.subject).collect()
}

/// What a state holds, however old it is.
fn held(limit: &Limit, state: &State) -> u64 {
    match state {
        State::Fixed(window) => u64::from(window.count),
        State::Sliding(window) => u64::from(window.current) + u64::from(window.previous),
        _ => {
            let mut state = state.clone();
            let at = limit.advance(&mut state, Nanos::ZERO);
            limit.used(&state, at)
        }
    }
}

impl Store for Link {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.sent.lock().push(Sent {
            at: self.sim.now(),
            node: self.node,
            line: self.line,
        });
        let sent = self.sim.now();
        let mut outcome = self
            .trip_for(subjects(set), |model, now| {
                let outcome = model.counters.decide(set, Intent::Charge, now);
                if outcome.admitted {
                    self.book_all(set, sent, now);
                }
                if self.variant == Variant::RefusalRefreshes && !outcome.admitted {
                    model.counters.refresh(set, now);
                }
                if self.variant == Variant::ChargesTwiceOnNoScript && model.no_script {
                    model.counters.decide(set, Intent::Charge, now);
                    model.no_script = false;
                }
                outcome
            })
            .await?;
        self.remember(set, &outcome);
        if self.variant == Variant::RemembersTooLong {
            for reading in &mut outcome.readings {
                if let Verdict::Deny {
                    retry: Retry::After(wait),
                } = &mut reading.verdict
                {
                    *wait = wait.plus(*wait);
                }
            }
        }
        Ok(outcome)
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.trip_for(subjects(set), |model, now| {
            model.counters.decide(set, Intent::Peek, now)
        })
        .await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        self.take_back(refund).await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.lend(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let more = ChargeSet::of(set.charges.iter().map(|c| self.with_the_seed(c)));
        let sent = self.sim.now();
        let mut outcome = self
            .trip_for(subjects(set), |model, now| match self.variant {
                Variant::TellsTwice => {
                    model.counters.decide(set, Intent::Force, now);
                    model.counters.decide(set, Intent::Force, now)
                }
                Variant::PushesTheSeed => model.counters.decide(&more, Intent::Force, now),
                Variant::NeverPushes => model.counters.decide(set, Intent::Peek, now),
                _ => {
                    self.book_all(set, sent, now);
                    let outcome = model.counters.decide(set, Intent::Force, now);
                    self.post_debt(model, set, now);
                    outcome
                }
            })
            .await?;
        self.remember(set, &outcome);
        if self.variant == Variant::NeverListens {
            for (charge, seen) in set.charges.iter().zip(&mut outcome.seen) {
                seen.state = charge.limit.fresh(outcome.at);
            }
        }
        Ok(outcome)
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let set = &reserve.set;
        let outcome = self.estimate(reserve).await?;
        self.remember(set, &outcome);
        Ok(outcome)
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.correct(settle).await
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        let subjects = seeds.iter().map(|seed| seed.charge.subject).collect();
        self.trip_for(subjects, |model, now| match self.variant {
            Variant::NeverSeeds => {}
            Variant::MergesBySum => {
                for seed in seeds {
                    let limit = seed.charge.limit.as_ref();
                    let mut state = seed.state.clone();
                    let at = limit.advance(&mut state, now);
                    if let Some(cost) = Cost::new(limit.used(&state, at)) {
                        let charge = Charge {
                            cost,
                            ..seed.charge.clone()
                        };
                        let set = ChargeSet::of([charge]);
                        model.counters.decide(&set, Intent::Force, now);
                    }
                }
            }
            Variant::CarriesWindows => {
                for (counter, (limit, state)) in self.seen.lock().iter() {
                    let carried = limit.holding(held(limit, state), now);
                    model.counters.raise(*counter, limit, &carried, now);
                }
            }
            _ => {
                model.counters.seed(seeds, now);
                self.post(model, &ChargeSet::default(), Step::Seeded, now);
            }
        })
        .await
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.ask_for_slot(hold, Verb::Hold).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.ask_for_slot(hold, Verb::Renew).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.ask_for_slot(hold, Verb::Release).await?;
        Ok(())
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.trip_for(subjects(set), |model, now| {
            let each = set.charges.iter().map(|charge| {
                let one = ChargeSet::of([charge.clone()]);
                let peeked = model.counters.decide(&one, Intent::Peek, now);
                let figures = peeked.readings.first()?.figures;
                (figures.reset_after > Nanos::ZERO).then(|| Inspection {
                    used: model.counters.used(charge.counter(), &charge.limit, now),
                    figures,
                    source: Source::Exact,
                })
            });
            each.collect()
        })
        .await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        self.trip_for(subjects(set), |model, now| {
            let forgotten = |c: &Charge<'_>| {
                let used = model.counters.reset(c.counter(), &c.limit, now);
                u64::from(used) + model.slots.vacate(c.counter(), now)
            };
            set.charges.iter().map(forgotten).sum()
        })
        .await
    }
}

impl Probe for Link {
    async fn beat(&self, beat: Beat) -> Answer<Vitals> {
        let now = self.sim.clone();
        let mut vitals = self.trip(|model, _| model.beat(beat, now.now())).await?;
        self.beats.fetch_add(1, Ordering::Relaxed);
        if self.variant == Variant::IgnoresPeers {
            vitals.beats.retain(|known| known.node == beat.node);
        }
        if self.variant == Variant::ImaginesPeers {
            let imagined = vitals.beats.clone().into_iter().flat_map(|beat| {
                [1, 2].map(|more| Beat {
                    node: NodeId(beat.node.0.wrapping_add(more)),
                    ..beat
                })
            });
            vitals.beats.extend(imagined);
        }
        Ok(vitals)
    }

    fn life(&self) -> Option<Life> {
        match self.life.load(Ordering::Relaxed) {
            0 => None,
            life => Some(Life(life)),
        }
    }

    fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        let unmet = self.beats.load(Ordering::Relaxed) < 2;
        match &self.seat {
            None => Some(Slot(0)),
            // Asked what it remembers of a store it has just met, the node finds nothing.
            Some(_) if self.variant == Variant::BelievesNewParts && unmet => None,
            Some(seat) => seat.slot(subject),
        }
    }
}
