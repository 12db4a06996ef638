//! A store that can do everything a real one does to those who rely on it.
//!
//! [`Model`] is the store: counters, a clock of its own, a life, beats of nodes, and how it behaves at
//! the moment. A [`Link`] is one node's way to it, and fills the port. Several of them are a [`Cluster`].

mod books;
mod cluster;
mod counters;
mod doors;
mod estimates;
mod lending;
mod link;
mod slots;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::{Beat, HeartbeatReply, Life, NodeId, RestorePoint, Vitals};
use tidegate_core::units::Nanos;

pub use self::books::{Books, Deed, Entry, Passage, Posting, Step, Touched, Verb};
pub use self::cluster::{Cluster, Divided, slot_of};
pub use self::counters::{Counters, Intent};
pub use self::link::{GIVEN_UP, Link, Sent};
use self::slots::Slots;
use crate::executor::Sim;

/// A beat lasts this long.
const BEAT_LASTS: Nanos = Nanos::from_secs(3);

/// How the store and the way to it behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weather {
    /// Nobody listens.
    pub down: bool,
    /// Everything is taken and nothing answered.
    pub hung: bool,
    /// One way takes at least this.
    pub fastest: Nanos,
    /// And at most this more.
    pub spread: Nanos,
    /// Of a thousand requests, how many are lost on the way.
    pub requests_lost: u32,
    /// Of a thousand answers, how many are.
    pub answers_lost: u32,
    /// Which replies are late.
    pub lateness: Lateness,
}

/// Replies that arrive late, of a store that is healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// Of a thousand replies, how many.
    pub per_mille: u32,
    /// By this at least.
    pub min: Nanos,
    /// By this at most.
    pub max: Nanos,
    /// Only those to this node, if it is named.
    pub node: Option<usize>,
}

impl Lateness {
    /// None are.
    pub const NONE: Lateness = Lateness {
        per_mille: 0,
        min: Nanos::ZERO,
        max: Nanos::ZERO,
        node: None,
    };
}

impl Weather {
    /// A store in the same zone.
    pub const FAIR: Weather = Weather {
        down: false,
        hung: false,
        fastest: Nanos::new(100_000),
        spread: Nanos::new(300_000),
        requests_lost: 0,
        answers_lost: 0,
        lateness: Lateness::NONE,
    };
}

/// A store of a simulation.
#[derive(Debug)]
pub struct Model {
    /// What it counts.
    pub counters: Counters,
    /// How it behaves.
    pub weather: Weather,
    /// Its clock is ahead of the simulation's by this.
    pub epoch: Nanos,
    /// And gains this many nanoseconds each second.
    pub drift: i64,
    life: u64,
    /// How many processes there were before.
    process: u64,
    beats: BTreeMap<NodeId, (Beat, Nanos)>,
    /// When its last heartbeat was, by its clock, and the last that its replica has.
    heartbeat: Nanos,
    replicated_heartbeat: Nanos,
    /// The last heartbeat that it found when it took over.
    found: Nanos,
    /// Another one if heartbeats are known to be lost.
    data_epoch: u64,
    restore_points: BTreeMap<NodeId, RestorePoint>,
    slots: Slots,
    /// Whether a connection tells that the store behind it is another one.
    pub tells_life: bool,
    /// Whether the next charge finds no script.
    pub no_script: bool,
}

/// The store, shared by all links.
pub type SharedModel = Arc<Mutex<Model>>;

impl Model {
    /// A store whose clock reads `epoch` at the beginning.
    pub fn new(epoch: Nanos) -> Self {
        Model {
            counters: Counters::default(),
            weather: Weather::FAIR,
            epoch,
            drift: 0,
            life: 1,
            process: 0,
            beats: BTreeMap::new(),
            heartbeat: Nanos::ZERO,
            replicated_heartbeat: Nanos::ZERO,
            found: Nanos::ZERO,
            data_epoch: 1,
            restore_points: BTreeMap::new(),
            slots: Slots::default(),
            tells_life: true,
            no_script: true,
        }
    }

    /// The store's time when the simulation's is `now`.
    pub fn time(&self, now: Nanos) -> Nanos {
        let gained = i128::from(now.get()) * i128::from(self.drift) / 1_000_000_000;
        let gained = i64::try_from(gained).unwrap_or(0);
        Nanos::new(self.epoch.plus(now).get().saturating_add_signed(gained))
    }

    /// Behaves like this from now on. A process that goes down does not come back; another does.
    pub fn set_weather(&mut self, weather: Weather) {
        self.process += u64::from(weather.down);
        self.weather = weather;
    }

    /// Starts again with nothing.
    pub fn restart_empty(&mut self) {
        self.forget_everything();
        self.no_script = true;
    }

    /// FLUSHALL: the process goes on, its memory is empty.
    pub fn forget_everything(&mut self) {
        self.counters.clear();
        self.slots = Slots::default();
        self.beats.clear();
        self.found = Nanos::ZERO;
        self.data_epoch += 1;
        self.life += 1;
    }

    /// A replica takes over that has not heard of the last writes; how many.
    pub fn fail_over(&mut self) -> usize {
        self.life += 1;
        self.found = self.replicated_heartbeat;
        self.data_epoch += u64::from(self.lacks_heartbeats());
        self.no_script = true;
        self.slots.fall_back();
        self.counters.fall_back()
    }

    /// A replica that takes over under a name of its own; what it has not heard of is lost.
    pub fn replica(&self) -> Model {
        let mut counters = self.counters.clone();
        counters.fall_back();
        let mut slots = self.slots.clone();
        slots.fall_back();
        Model {
            counters,
            weather: Weather::FAIR,
            life: self.life + 1,
            found: self.replicated_heartbeat,
            data_epoch: self.data_epoch + u64::from(self.lacks_heartbeats()),
            restore_points: self.restore_points.clone(),
            beats: BTreeMap::new(),
            slots,
            no_script: true,
            ..*self
        }
    }

    /// The last heartbeat that a replica finds if it takes over now. Zero if it lacks one that was acknowledged.
    pub(crate) fn whole_replica(&self) -> Nanos {
        if self.lacks_heartbeats() {
            Nanos::ZERO
        } else {
            self.replicated_heartbeat
        }
    }

    /// Whether the replica lacks a heartbeat that was acknowledged.
    fn lacks_heartbeats(&self) -> bool {
        self.replicated_heartbeat < self.heartbeat
    }

    fn beat(&mut self, beat: Beat, now: Nanos) -> Vitals {
        let at = self.time(now);
        self.heartbeat = at;
        let reply = HeartbeatReply {
            life: Life(self.life),
            epoch: self.data_epoch,
            at,
            found: self.found,
        };
        let point = self.restore_points.entry(beat.node).or_default();
        let whole_until = point.note(beat.seeded, &reply);
        self.beats.insert(beat.node, (beat, now));
        self.beats
            .retain(|_, (_, left)| now.since(*left) < BEAT_LASTS);
        Vitals {
            life: Life(self.life),
            at,
            whole_until,
            beats: self.beats.values().map(|(beat, _)| *beat).collect(),
        }
    }
}

/// A replica that hears of every write `lag` later.
pub async fn replicate(sim: Sim, model: SharedModel, lag: Nanos) {
    loop {
        let (counts, slots, heartbeat) = {
            let model = model.lock();
            let (counts, slots) = (model.counters.unheard(), model.slots.unheard());
            (counts, slots, model.heartbeat)
        };
        sim.sleep(lag).await;
        let mut model = model.lock();
        model.counters.heard(counts);
        model.slots.heard(slots);
        model.replicated_heartbeat = heartbeat;
    }
}
