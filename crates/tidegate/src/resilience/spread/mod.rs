//! A store around the parts of a store, each with a fallback of its own.
//!
//! A part that fails takes only its own counters with it; the others stay exact. What a node remembers
//! is shared by all parts, because counters move between them. A request whose limits are in one slot
//! is one call to one part. Else it is charged step by step (`groups`, `in_turn`).
//!
//! Parts are met as soon as they are known, and again looked for whenever a subject is in none of them.
//! What is in no part at all is decided by this node's share.

mod groups;
mod in_turn;
mod port;
mod tally;
mod watch;

use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, Outcome, PartId, Parts, Slot, Source, Terms};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use self::groups::Places;
pub(super) use self::watch::AsOne;
pub use self::watch::PartWatch;
use super::clock_watch::ClockReading;
use super::event::Watcher;
use super::failure_counts::FailureCounts;
use super::fallback::Fallback;
use super::memory::Memory;
use super::pending::PendingUnits;
use super::settings::{NODES_UNKNOWN, Settings};
use super::store_clock::StoreClock;
use crate::runtime::Runtime;

/// The parts of a store and what stands in for each. Clones are the same.
pub struct Spread<P: Parts, R>(Arc<Inner<P, R>>);

impl<P: Parts, R> Clone for Spread<P, R> {
    fn clone(&self) -> Self {
        Spread(Arc::clone(&self.0))
    }
}

struct Inner<P: Parts, R> {
    parts: P,
    met: ArcSwap<Vec<Met<P::Part, R>>>,
    /// What decides for subjects that are in no part, once there was one.
    nowhere: ArcSwapOption<Fallback<P::Part, R>>,
    /// Held while parts are met or let go.
    meeting: Mutex<()>,
    memory: Arc<Memory>,
    runtime: R,
    me: NodeId,
    /// The time of day, for what no part has told the time of.
    clock: StoreClock,
    settings: Settings,
    watch: Arc<dyn PartWatch>,
}

/// A part that was met.
struct Met<S, R> {
    id: PartId,
    store: Fallback<S, R>,
}

impl<S, R> Clone for Met<S, R> {
    fn clone(&self) -> Self {
        Met {
            id: self.id,
            store: self.store.clone(),
        }
    }
}

/// Where counters are that can be charged in one step.
struct Place<S, R> {
    part: PartId,
    slot: Option<Slot>,
    store: Fallback<S, R>,
}

/// The places that a request concerns, each once.
type Distinct<S, R> = SmallVec<[Place<S, R>; 2]>;

impl<P: Parts + 'static, R: Runtime> Spread<P, R> {
    /// Stands in for each of `parts`, as the node `me`. Starts without any of them.
    pub fn new(
        parts: P,
        runtime: R,
        me: NodeId,
        settings: Settings,
        watch: Arc<dyn PartWatch>,
    ) -> Self {
        // The time of day has to do until a part tells its own.
        let wall = runtime.wall();
        let inner = Arc::new(Inner {
            parts,
            met: ArcSwap::default(),
            nowhere: ArcSwapOption::empty(),
            meeting: Mutex::new(()),
            memory: Arc::new(Memory::new(wall, &settings)),
            clock: StoreClock::new(runtime.now(), wall),
            runtime: runtime.clone(),
            me,
            settings,
            watch,
        });
        inner.look_around();
        runtime.spawn(keep_looking(Arc::downgrade(&inner), runtime.clone()));
        Spread(inner)
    }

    /// The nodes as last listed by any part, to be kept for the next start.
    pub fn roster(&self) -> Vec<NodeId> {
        self.0.roster()
    }

    /// How often any part failed, by kind.
    pub fn failures(&self) -> &FailureCounts {
        &self.0.settings.failures
    }

    /// What this node has admitted and the store does not count yet.
    pub(super) fn pending(&self) -> Vec<PendingUnits> {
        self.0.memory.pending(self.0.time())
    }

    /// Goes on with what was pending before a restart; how many counters of it have a rule.
    pub(super) fn restore_pending(
        &self,
        pending: &[PendingUnits],
        limit_of: impl Fn(&PendingUnits) -> Option<(Limit, Terms)>,
    ) -> usize {
        let found = pending.iter().filter_map(|pending| {
            let (limit, terms) = limit_of(pending)?;
            self.0.memory.restore(pending, &limit, terms);
            Some(())
        });
        found.count()
    }

    /// Whether a late reply may still change what can be admitted of a counter.
    pub(super) fn is_unsettled(&self, counter: u128) -> bool {
        self.0.memory.late.is_unsettled(counter)
    }

    /// How many nodes to reckon with: those listed, or as many as somebody said if that is more.
    pub fn nodes(&self) -> u64 {
        let listed = self.roster().len() as u64;
        let said = self.0.settings.nodes.map_or(0, u64::from);
        match listed.max(said) {
            0 => u64::from(NODES_UNKNOWN),
            known => known,
        }
    }

    /// How far the clocks of this node and of a part are apart: of the part that is the furthest off.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        let met = self.0.met.load();
        let readings = met.iter().filter_map(|met| met.store.clock_reading());
        readings.max_by_key(|reading| (reading.level, reading.offset.nanos.unsigned_abs()))
    }
}

/// Meets parts as they come and lets them go, for as long as the node lives.
async fn keep_looking<P: Parts + 'static, R: Runtime>(spread: Weak<Inner<P, R>>, runtime: R) {
    while let Some(inner) = spread.upgrade() {
        inner.look_around();
        let every = inner.settings.ping_every;
        drop(inner);
        runtime.sleep(every).await;
    }
}

impl<P: Parts + 'static, R: Runtime> Inner<P, R> {
    /// Meets new parts and lets go of those that are none any more.
    fn look_around(&self) {
        let _one_at_a_time = self.meeting.lock();
        let met = self.met.load_full();
        let ids = self.parts.ids();
        let (stay, gone): (Vec<_>, Vec<_>) = met
            .iter()
            .cloned()
            .partition(|met| ids.contains(&met.id) || self.parts.part(met.id).is_some());
        // Who comes as another goes takes over from it: its time is the best guess.
        let time = gone
            .first()
            .map_or_else(|| self.time(), |met| met.store.time());
        let known = |id: &PartId| stay.iter().any(|met| met.id == *id);
        let new: Vec<Met<P::Part, R>> = ids
            .into_iter()
            .filter(|id| !known(id))
            .filter_map(|id| self.meet(id, time))
            .collect();
        if new.is_empty() && gone.is_empty() {
            return;
        }
        // Nobody has taken over: what was there is elsewhere now. If it could not be reached, it is nowhere.
        if new.is_empty() && gone.iter().any(|met| !met.store.is_exact()) {
            stay.iter().for_each(|met| met.store.may_lack_counts());
        }
        for met in gone {
            self.watch.gone(met.id);
        }
        self.nowhere.store(None);
        self.met
            .store(Arc::new(stay.into_iter().chain(new).collect()));
    }

    fn meet(&self, id: PartId, time: Nanos) -> Option<Met<P::Part, R>> {
        let part = self.parts.part(id)?;
        self.watch.met(id);
        let watch = Arc::clone(&self.watch);
        let watcher: Watcher = Arc::new(move |event| watch.told(id, event));
        let (memory, runtime) = (Arc::clone(&self.memory), self.runtime.clone());
        let settings = self.to_begin_with();
        let store = Fallback::beside(part, memory, runtime, self.me, time, settings, watcher);
        Some(Met { id, store })
    }

    /// The time of some part, or the time of day.
    fn time(&self) -> Nanos {
        let met = self.met.load();
        let time = met.first().map(|met| met.store.time());
        time.unwrap_or_else(|| self.clock.at(self.runtime.now()))
    }

    fn find(&self, id: PartId) -> Option<Fallback<P::Part, R>> {
        let met = self.met.load();
        let found = met.iter().find(|met| met.id == id);
        found.map(|met| met.store.clone())
    }

    fn place_of(&self, subject: Fingerprint) -> Place<P::Part, R> {
        let part = self.parts.part_of(subject);
        let found = self.find(part).or_else(|| {
            self.parts.part(part)?;
            self.look_around();
            self.find(part)
        });
        let store = found.unwrap_or_else(|| self.nowhere());
        Place {
            part,
            slot: store.slot(subject),
            store,
        }
    }

    /// The places of some subjects, and which of them each subject is in.
    fn places_of(
        &self,
        subjects: impl Iterator<Item = Fingerprint>,
    ) -> (Distinct<P::Part, R>, Places) {
        let mut places = Distinct::new();
        let mut of = Places::new();
        let mut last = None;
        for subject in subjects {
            if let Some((same, at)) = last
                && same == subject
            {
                of.push(at);
                continue;
            }
            let place = self.place_of(subject);
            let same = |known: &Place<_, _>| (known.part, known.slot) == (place.part, place.slot);
            let at = places.iter().position(same).unwrap_or(places.len());
            if at == places.len() {
                places.push(place);
            }
            of.push(at);
            last = Some((subject, at));
        }
        (places, of)
    }

    /// Whoever asks for nothing is given it.
    fn nothing_asked(&self) -> Outcome {
        Outcome {
            admitted: true,
            readings: SmallVec::new(),
            seen: Vec::new(),
            at: self.time(),
            source: Source::Exact,
            clock_stepped: false,
        }
    }

    /// Decides what is in no part.
    fn nowhere(&self) -> Fallback<P::Part, R> {
        if let Some(known) = self.nowhere.load().as_deref() {
            return known.clone();
        }
        let (memory, runtime) = (Arc::clone(&self.memory), self.runtime.clone());
        let (time, settings) = (self.time(), self.to_begin_with());
        let nowhere = Fallback::of_nothing(memory, runtime, self.me, time, settings);
        self.nowhere.store(Some(Arc::new(nowhere.clone())));
        nowhere
    }

    /// The settings of a part: it begins with what the others know of the nodes.
    fn to_begin_with(&self) -> Settings {
        let mut settings = self.settings.clone();
        settings.roster = self.roster();
        settings
    }

    /// The longest list of nodes that a part knows, or the one to begin with.
    fn roster(&self) -> Vec<NodeId> {
        let met = self.met.load();
        let rosters = met.iter().map(|met| met.store.roster());
        let longest = rosters.max_by_key(Vec::len);
        longest.unwrap_or_else(|| self.settings.roster.clone())
    }
}
