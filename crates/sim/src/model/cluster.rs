//! Several model stores among which counters are divided by slot, and what each node thinks of it.
//!
//! [`Cluster`] is the truth. A node has a map of its own, which is read anew now and then and
//! corrected by whoever is asked for what it no longer has. [`Divided`] is one node's way to all of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::store::{PartId, Parts, Slot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::{Link, SharedModel};
use crate::executor::Sim;

/// How many slots there are.
const SLOTS: u128 = 16_384;

/// How often a node reads the map anew.
const READ_EVERY: Nanos = Nanos::from_millis(100);

/// The slot of a subject.
pub fn slot_of(subject: Fingerprint) -> Slot {
    Slot((subject.bits() % SLOTS) as u16)
}

/// One store of a cluster. Its line is the stores that took over from each other.
struct Member {
    id: PartId,
    line: usize,
    model: SharedModel,
}

/// Who has what.
pub struct Cluster {
    members: Mutex<Vec<Member>>,
    /// The line that has a slot; the first, if none is named.
    lines: Mutex<BTreeMap<Slot, usize>>,
    /// Calls that spoke of several slots.
    crossed: AtomicU64,
}

/// What a node thinks: which parts there are, and which has a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    ids: Vec<PartId>,
    homes: BTreeMap<Slot, PartId>,
}

impl Cluster {
    /// A line for each of these.
    pub fn new(models: impl IntoIterator<Item = SharedModel>) -> Self {
        let member = |(line, model)| Member {
            id: PartId(line as u64),
            line,
            model,
        };
        Cluster {
            members: Mutex::new(models.into_iter().enumerate().map(member).collect()),
            lines: Mutex::default(),
            crossed: AtomicU64::new(0),
        }
    }

    /// How many lines there are.
    pub fn lines(&self) -> usize {
        self.members.lock().len()
    }

    /// The store that has a line now.
    pub fn model(&self, line: usize) -> SharedModel {
        let members = self.members.lock();
        let member = members.iter().find(|member| member.line == line);
        Arc::clone(&member.expect("every line has a store").model)
    }

    /// The line that a subject is in.
    pub fn line_of(&self, subject: Fingerprint) -> usize {
        let lines = self.lines.lock();
        lines.get(&slot_of(subject)).copied().unwrap_or(0)
    }

    /// The line of a part, if it still is one.
    pub fn line(&self, id: PartId) -> Option<usize> {
        let members = self.members.lock();
        let member = members.iter().find(|member| member.id == id)?;
        Some(member.line)
    }

    /// Gives a subject's slot to a line.
    pub fn give(&self, subject: Fingerprint, line: usize) {
        self.lines.lock().insert(slot_of(subject), line);
    }

    /// Deals out all slots, one to each line in turn.
    pub fn deal(&self) {
        let lines = self.lines();
        let slots = (0..SLOTS as u16).map(|slot| (Slot(slot), usize::from(slot) % lines));
        self.lines.lock().extend(slots);
    }

    /// Another store takes over a line. It is a part of its own.
    pub fn take_over(&self, line: usize, id: PartId, model: SharedModel) {
        let mut members = self.members.lock();
        members.retain(|member| member.line != line);
        members.push(Member { id, line, model });
    }

    /// How many calls spoke of several slots.
    pub fn crossed(&self) -> u64 {
        self.crossed.load(Ordering::Relaxed)
    }

    /// The part that has a slot.
    fn home(&self, slot: Slot) -> Option<PartId> {
        let line = self.lines.lock().get(&slot).copied().unwrap_or(0);
        let members = self.members.lock();
        let member = members.iter().find(|member| member.line == line)?;
        Some(member.id)
    }

    fn map(&self) -> Map {
        let slots: Vec<Slot> = self.lines.lock().keys().copied().collect();
        let home = |slot: Slot| Some((slot, self.home(slot)?));
        Map {
            homes: slots.into_iter().filter_map(home).collect(),
            ids: self.members.lock().iter().map(|member| member.id).collect(),
        }
    }
}

/// A link's place in a cluster.
#[derive(Clone)]
pub(super) struct Seat {
    cluster: Arc<Cluster>,
    map: Arc<Mutex<Map>>,
    id: PartId,
}

/// What a store says to a call that it cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elsewhere {
    Moved(Slot),
    CrossSlot,
}

impl Seat {
    /// Whether the node thinks that a subject is here.
    pub(super) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        let slot = slot_of(subject);
        let here = self.map.lock().home(slot) == Some(self.id);
        here.then_some(slot)
    }

    /// Whether these subjects are here in truth, all in one slot.
    pub(super) fn serves(&self, subjects: &[Fingerprint]) -> Result<(), Elsewhere> {
        let mut slots = subjects.iter().map(|subject| slot_of(*subject));
        let Some(first) = slots.next() else {
            return Ok(());
        };
        if slots.any(|slot| slot != first) {
            self.cluster.crossed.fetch_add(1, Ordering::Relaxed);
            return Err(Elsewhere::CrossSlot);
        }
        match self.cluster.home(first) == Some(self.id) {
            true => Ok(()),
            false => Err(Elsewhere::Moved(first)),
        }
    }

    /// The node was told that a slot is elsewhere, and where.
    pub(super) fn corrected(&self, slot: Slot) {
        let Some(home) = self.cluster.home(slot) else {
            return;
        };
        let mut map = self.map.lock();
        map.homes.insert(slot, home);
        if !map.ids.contains(&home) {
            map.ids.push(home);
        }
    }
}

impl Map {
    fn home(&self, slot: Slot) -> Option<PartId> {
        self.homes.get(&slot).or(self.ids.first()).copied()
    }
}

/// One node's way to a cluster.
#[derive(Clone)]
pub struct Divided {
    cluster: Arc<Cluster>,
    map: Arc<Mutex<Map>>,
    /// A link that the others are made like.
    like: Link,
    links: Arc<Mutex<BTreeMap<PartId, Link>>>,
}

impl Divided {
    /// The way of a node, whose links are like `like`.
    pub fn new(cluster: &Arc<Cluster>, like: Link) -> Self {
        Divided {
            cluster: Arc::clone(cluster),
            map: Arc::new(Mutex::new(cluster.map())),
            like,
            links: Arc::default(),
        }
    }

    /// Reads the map anew now and then, for as long as the node lives.
    pub async fn read_the_map(self, sim: Sim) {
        loop {
            let jitter = sim.draw(|rng| rng.below(READ_EVERY.get() / 2));
            sim.sleep(READ_EVERY.plus(Nanos::new(jitter))).await;
            self.read();
        }
    }

    /// Reads the map anew.
    pub fn read(&self) {
        *self.map.lock() = self.cluster.map();
    }

    /// A single store is not divided at all: its link speaks of all subjects at once.
    fn link(&self, id: PartId) -> Option<Link> {
        let line = self.cluster.line(id)?;
        let model = self.cluster.model(line);
        let seat = (self.cluster.lines() > 1).then(|| Seat {
            cluster: Arc::clone(&self.cluster),
            map: Arc::clone(&self.map),
            id,
        });
        Some(self.like.to(&model, line, seat))
    }
}

impl Parts for Divided {
    type Part = Link;

    fn part_of(&self, subject: Fingerprint) -> PartId {
        let home = self.map.lock().home(slot_of(subject));
        home.unwrap_or(PartId(0))
    }

    /// A part that has been replaced stays one until the node has read so.
    fn part(&self, id: PartId) -> Option<Link> {
        if !self.map.lock().ids.contains(&id) {
            return None;
        }
        let mut links = self.links.lock();
        if let Some(link) = links.get(&id) {
            return Some(link.clone());
        }
        let link = self.link(id)?;
        links.insert(id, link.clone());
        Some(link)
    }

    fn ids(&self) -> Vec<PartId> {
        self.map.lock().ids.clone()
    }
}
