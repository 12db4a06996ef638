//! A cluster: who serves which slot, and the ways to all of them.
//!
//! Keeps the map that `survey` asks for, and one link per primary, made and dropped as primaries come
//! and go. A redirect is followed for the call that met it, because then nothing was done; a server that
//! says that a slot has moved changes the map at once. Each primary is a part of its own, known by its
//! name in the cluster: a replica that takes over is another part, and takes over what is known of the data. Knows
//! nothing of counters.

mod branch;
pub(super) mod census;
mod map;
mod slot_memos;
mod slots;
mod survey;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tidegate_core::store::{PartId, Slot, Unacknowledged};
use tokio::sync::Notify;

pub(super) use self::branch::Branch;
pub(super) use self::slots::slot_of_subject;

use self::map::{SlotMap, place_of};
use self::slot_memos::SlotMemos;
use self::slots::slot_of;
use super::access::{Access, Place};
use super::fault::Fault;
use super::gate::Gate;
use super::link::{Errand, Link, RedisConfig};
use super::memo::{Memo, SourceState};
use super::redirect::{Entry, Redirect};
use super::scripts::Loaded;

/// Where the slots are that nobody serves, or nobody is known to. It is no part.
const NOWHERE: PartId = PartId(0);

/// A cluster and the connections to it.
pub(super) struct Cluster {
    /// Nothing until the map is first told.
    view: ArcSwapOption<View>,
    memos: Mutex<SlotMemos>,
    seeds: Vec<Place>,
    access: Access,
    config: RedisConfig,
    scripts: Arc<[Loaded]>,
    gate: Arc<Gate>,
    /// Rung when the map may have changed.
    bell: Arc<Notify>,
    surveys: AtomicU64,
    /// Why the map could not be had.
    last: ArcSwapOption<Fault>,
}

/// The map, and its primaries with the ways to them, in the same order.
struct View {
    map: SlotMap,
    seats: Arc<[Arc<Seat>]>,
}

/// A primary where it is now.
pub(super) struct Seat {
    part: PartId,
    place: Place,
    pub(super) link: Link,
    /// Outlives a change of address, and a failover.
    pub(super) memo: Arc<Memo>,
}

impl Seat {
    /// What is known of the primary when hash slots leave it.
    fn state(&self) -> SourceState {
        let run = self.link.run();
        if !self.link.stands() || !self.memo.has_met(run) {
            SourceState::Unmet
        } else if self.memo.has_all(run) {
            SourceState::Whole
        } else {
            SourceState::Unrestored
        }
    }
}

impl Cluster {
    /// Begins to ask `seeds` for the map, and goes on until it has it. Must be called within a tokio
    /// runtime.
    pub(super) fn open(
        seeds: Vec<Place>,
        access: Access,
        config: &RedisConfig,
        scripts: Arc<[Loaded]>,
    ) -> Arc<Cluster> {
        LazyLock::force(&slots::TAGS);
        let cluster = Arc::new(Cluster::unknown(seeds, access, config, scripts));
        let bell = Arc::clone(&cluster.bell);
        tokio::spawn(survey::keep(Arc::downgrade(&cluster), bell));
        cluster
    }

    fn unknown(
        seeds: Vec<Place>,
        access: Access,
        config: &RedisConfig,
        scripts: Arc<[Loaded]>,
    ) -> Cluster {
        Cluster {
            view: ArcSwapOption::empty(),
            memos: Mutex::default(),
            seeds,
            access,
            config: config.clone(),
            scripts,
            gate: Arc::new(Gate::new()),
            bell: Arc::default(),
            surveys: AtomicU64::new(0),
            last: ArcSwapOption::empty(),
        }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// How often the map was asked for.
    pub(super) fn surveys(&self) -> u64 {
        self.surveys.load(Ordering::Relaxed)
    }

    /// Waits until a primary can be asked.
    pub(super) async fn ready(&self) {
        let stands = || {
            let view = self.view.load();
            view.as_ref()
                .is_some_and(|view| view.seats.iter().any(|seat| seat.link.stands()))
        };
        self.gate.until(stands).await;
    }

    /// Why the cluster, or one of its primaries, is not connected.
    pub(super) fn last_fault(&self) -> Option<Fault> {
        match self.view.load().as_ref() {
            None => self.last.load().as_deref().cloned(),
            Some(view) => view.seats.iter().find_map(|seat| seat.link.last_fault()),
        }
    }

    /// Why one of its primaries does not acknowledge durable charges at present.
    pub(super) fn unacknowledged(&self) -> Option<Unacknowledged> {
        let view = self.view.load();
        let mut seats = view.as_ref()?.seats.iter();
        seats.find_map(|seat| seat.link.safe.why())
    }

    /// The part that serves a slot.
    pub(super) fn part_of(&self, slot: Slot) -> PartId {
        self.seat_of(slot).map_or(NOWHERE, |seat| seat.part)
    }

    /// Every primary that serves slots.
    pub(super) fn ids(&self) -> Vec<PartId> {
        let view = self.view.load();
        let seats = view.as_ref().map_or(&[][..], |view| &view.seats[..]);
        seats.iter().map(|seat| seat.part).collect()
    }

    /// The primary that is this part now.
    pub(super) fn seat(&self, part: PartId) -> Option<Arc<Seat>> {
        let view = self.view.load();
        let mut seats = view.as_ref()?.seats.iter();
        seats.find(|seat| seat.part == part).cloned()
    }

    fn seat_of(&self, slot: Slot) -> Option<Arc<Seat>> {
        let view = self.view.load();
        let view = view.as_ref()?;
        view.seats.get(view.map.owner(slot)?).cloned()
    }

    /// Runs a plain command where its only key is.
    pub(super) async fn command(&self, key: &[u8], command: &Cmd) -> Result<Value, Fault> {
        let Some(seat) = self.seat_of(slot_of(key)) else {
            let last = self.last.load();
            return Err(last.as_deref().cloned().unwrap_or_else(Fault::not_served));
        };
        let errand = Errand::Command(command);
        let (first, _) = seat.link.send(errand, Entry::Plain).await;
        self.follow(errand, seat, first).await
    }

    /// Takes note of what a fault tells of the map.
    fn heed(&self, fault: &Fault) {
        let asks = |redirect: &Redirect| redirect.entry == Entry::Asking;
        // A slot that is being moved is still where the map has it.
        if fault.tells_of_change() && !fault.redirect().is_some_and(asks) {
            self.bell.notify_one();
        }
    }

    /// The primary that `from` sends us to, if it is known.
    fn led(&self, redirect: &Redirect, from: &Seat) -> Option<Arc<Seat>> {
        let place = place_of(&redirect.to, host(&from.place))?;
        if redirect.entry == Entry::Plain {
            self.note_moved(redirect.slot, &place);
        }
        let view = self.view.load();
        let mut seats = view.as_ref()?.seats.iter();
        let found = seats.find(|seat| seat.place == place).cloned();
        if found.is_none() {
            self.bell.notify_one();
        }
        found
    }

    /// Puts one slot elsewhere on the map, without waiting for the next survey.
    fn note_moved(&self, slot: Slot, place: &Place) {
        self.view.rcu(|view| {
            let view = view.as_ref()?;
            let seat = |map: &SlotMap| map.owner(slot).map(|owner| &view.seats[owner]);
            let owner = seat(&view.map);
            let moved =
                (owner.map(|seat| &seat.place) != Some(place)).then(|| view.map.moved(slot, place));
            Some(match moved.flatten() {
                None => Arc::clone(view),
                Some(map) => {
                    if let (Some(from), Some(to)) = (owner, seat(&map)) {
                        to.memo.receive_slots(&from.memo, from.state(), &[slot]);
                    }
                    Arc::new(View {
                        map,
                        seats: Arc::clone(&view.seats),
                    })
                }
            })
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Whoever keeps the map looks whether there is still somebody to keep it for.
        self.bell.notify_one();
    }
}

/// The host of a server of a cluster, which is never on a socket.
fn host(place: &Place) -> &str {
    match place {
        Place::Port { host, .. } => host,
        Place::Socket(_) => "",
    }
}

#[cfg(test)]
mod tests;
