//! How the calls of one part reach its counters: to its primary, and on to where that one sends us.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate_core::store::{PartId, Slot};
use tidegate_core::subject::Fingerprint;

use super::slots::{common_slot, slot_of_subject, tag_for};
use super::{Cluster, Seat};
use crate::stores::redis::fault::Fault;
use crate::stores::redis::link::{Call, Errand};
use crate::stores::redis::redirect::Entry;

/// More servers than that one after another send us in a circle.
const MOST_HOPS: u32 = 3;
/// How often to ask again while the keys of one call are on two servers, and how long to wait before
/// each: a slot moves within milliseconds, and a decision has few of them.
const MOST_WAITS: u32 = 3;
const WAIT: Duration = Duration::from_millis(1);

/// The way to one part of a cluster.
#[derive(Clone)]
pub(in crate::stores::redis) struct Branch {
    pub(in crate::stores::redis) cluster: Arc<Cluster>,
    pub(in crate::stores::redis) part: PartId,
}

/// Where the nodes of a primary sign in.
pub(in crate::stores::redis) struct Register {
    pub(in crate::stores::redis) seat: Arc<Seat>,
    pub(in crate::stores::redis) slot: Slot,
    /// Its name in the cluster.
    pub(in crate::stores::redis) id: String,
}

impl Register {
    /// The key, in its slot.
    pub(in crate::stores::redis) fn key(&self) -> Vec<u8> {
        register_key(self.slot, &self.id)
    }
}

/// The register of the primary that is named `id`, in `slot`.
pub(super) fn register_key(slot: Slot, id: &str) -> Vec<u8> {
    format!("tg:ctl:{{{}}}:nodes:{id}", tag_for(slot)).into_bytes()
}

impl Branch {
    /// The slot of a subject, if its counters are in this part.
    pub(in crate::stores::redis) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        let slot = slot_of_subject(subject);
        (self.cluster.part_of(slot) == self.part).then_some(slot)
    }

    /// Waits until the primary can be asked.
    pub(in crate::stores::redis) async fn ready(&self) {
        let stands = || {
            let seat = self.cluster.seat(self.part);
            seat.is_some_and(|seat| seat.link.stands())
        };
        self.cluster.gate.until(stands).await;
    }

    /// Runs a script on keys of one slot.
    pub(in crate::stores::redis) async fn call(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let seat = self.seat_for(call)?;
        let errand = Errand::Script(call);
        let (first, _) = seat.link.send(errand, Entry::Plain).await;
        self.cluster.follow(errand, seat, first).await
    }

    /// Runs several scripts, in one go as far as the primary has their keys.
    pub(in crate::stores::redis) async fn call_each(
        &self,
        calls: &[Call<'_>],
    ) -> Vec<Result<Value, Fault>> {
        let seats: Result<Vec<_>, _> = calls.iter().map(|call| self.seat_for(call)).collect();
        let seat = match seats.map(|mut seats| seats.pop()) {
            Ok(Some(seat)) => seat,
            Ok(None) => return Vec::new(),
            Err(fault) => return calls.iter().map(|_| Err(fault.clone())).collect(),
        };
        let firsts = seat.link.call_each(calls).await;
        let mut answers = Vec::with_capacity(calls.len());
        for (call, first) in calls.iter().zip(firsts) {
            let errand = Errand::Script(call);
            let followed = self.cluster.follow(errand, Arc::clone(&seat), first);
            answers.push(followed.await);
        }
        answers
    }

    /// Where nodes sign in, but for the slots in `without`.
    pub(in crate::stores::redis) fn register(&self, without: &[Slot]) -> Option<Register> {
        let view = self.cluster.view.load();
        let view = view.as_ref()?;
        let primary = view.seats.iter().position(|seat| seat.part == self.part)?;
        Some(Register {
            seat: Arc::clone(&view.seats[primary]),
            slot: view.map.register_slot(primary, without)?,
            id: view.map.primaries[primary].id.clone(),
        })
    }

    /// Takes note of what a fault tells of the map: so a slot that moved is no longer ours.
    pub(in crate::stores::redis) fn heed(&self, fault: &Fault, from: &Seat) {
        self.cluster.heed(fault);
        if let Some(redirect) = fault.redirect() {
            self.cluster.led(redirect, from);
        }
    }

    fn seat_for(&self, call: &Call<'_>) -> Result<Arc<Seat>, Fault> {
        common_slot(call.keys).ok_or_else(Fault::across_slots)?;
        let seat = self.cluster.seat(self.part);
        seat.ok_or_else(Fault::not_served)
    }
}

impl Cluster {
    /// Goes on from the first answer of `seat` to the server that does the errand. Whoever sends us on
    /// has done nothing, so nothing is done twice.
    pub(super) async fn follow(
        &self,
        errand: Errand<'_>,
        mut seat: Arc<Seat>,
        mut answer: Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        let (mut hops, mut waits, mut entry) = (0, 0, Entry::Plain);
        loop {
            let fault = match answer {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            self.heed(&fault);
            if let Some(redirect) = fault.redirect() {
                let next = self.led(redirect, &seat).filter(|_| hops < MOST_HOPS);
                let Some(next) = next else {
                    return Err(fault.on_the_move());
                };
                (seat, entry) = (next, redirect.entry);
                hops += 1;
            } else if fault.code() == "TRYAGAIN" && waits < MOST_WAITS {
                tokio::time::sleep(WAIT).await;
                waits += 1;
            } else {
                return Err(fault);
            }
            (answer, _) = seat.link.send(errand, entry).await;
        }
    }
}
