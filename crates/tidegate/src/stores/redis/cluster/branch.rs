//! How the calls of one part reach its counters: to its primary, and on to where that one sends us.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate_core::store::{PartId, Slot};
use tidegate_core::subject::Fingerprint;

use super::slots::{common_slot, slot_of_subject, tag_for};
use super::{Cluster, Seat};
use crate::stores::redis::durable::{Answered, Need, Safe};
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
        register_key(self.slot)
    }
}

/// The register that is in `slot`.
pub(super) fn register_key(slot: Slot) -> Vec<u8> {
    format!("tg:ctl:{{{}}}:nodes", tag_for(slot)).into_bytes()
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
        let seat = self.seat_for(std::slice::from_ref(call))?;
        let errand = Errand::Script(call);
        let (first, _) = seat.link.send(errand, Entry::Plain).await;
        self.cluster.follow(errand, seat, first).await
    }

    /// Runs several scripts, in one go as far as the primary has their keys.
    pub(in crate::stores::redis) async fn call_each(
        &self,
        calls: &[Call<'_>],
    ) -> Vec<Result<Value, Fault>> {
        let seat = match self.seat_for(calls) {
            Ok(seat) => seat,
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

    /// The same, and waits until each is as safe as `need` says where it was run.
    ///
    /// # Errors
    /// When nothing was sent, because what was sent before is not safe yet.
    pub(in crate::stores::redis) async fn call_safely(
        &self,
        calls: &[Call<'_>],
        need: Need,
    ) -> Answered {
        let seat = match self.seat_for(calls) {
            Ok(seat) => seat,
            Err(fault) => return Ok((vec![Err(fault); calls.len()], Ok(()))),
        };
        let (firsts, mut safe) = seat.link.call_safely(calls, need, Entry::Plain).await?;
        let mut answers = Vec::with_capacity(calls.len());
        for (call, first) in calls.iter().zip(firsts) {
            let at = Arc::clone(&seat);
            let followed = self.cluster.follow_safely(call, need, at, first).await;
            answers.push(followed.map(|(value, safe_there)| {
                safe = safe.clone().and(safe_there);
                value
            }));
        }
        Ok((answers, safe))
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

    /// The primary, if each call keeps to one slot.
    fn seat_for(&self, calls: &[Call<'_>]) -> Result<Arc<Seat>, Fault> {
        let mut slots = calls.iter().map(|call| common_slot(call.keys));
        match slots.all(|slot| slot.is_some()) {
            true => self.cluster.seat(self.part).ok_or_else(Fault::not_served),
            false => Err(Fault::across_slots()),
        }
    }
}

impl Cluster {
    /// Goes on from the first answer of `seat` to the server that does the errand.
    pub(super) async fn follow(
        &self,
        errand: Errand<'_>,
        seat: Arc<Seat>,
        mut answer: Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        let mut path = Path::from(seat);
        loop {
            match answer {
                Ok(value) => return Ok(value),
                Err(fault) => path.go_on(self, fault).await?,
            }
            (answer, _) = path.seat.link.send(errand, path.entry).await;
        }
    }

    /// The same for a call that must be safe where it is done. What is turned away on its path is done
    /// nowhere.
    async fn follow_safely(
        &self,
        call: &Call<'_>,
        need: Need,
        seat: Arc<Seat>,
        mut answer: Result<Value, Fault>,
    ) -> Result<(Value, Safe), Fault> {
        let (mut path, mut safe) = (Path::from(seat), Ok(()));
        loop {
            let fault = match answer {
                Ok(value) => return Ok((value, safe)),
                Err(fault) => fault,
            };
            path.go_on(self, fault.clone()).await?;
            let link = &path.seat.link;
            let sent = link.call_safely(std::slice::from_ref(call), need, path.entry);
            let Ok((mut answers, safe_there)) = sent.await else {
                return Err(fault.on_the_move());
            };
            answer = answers.pop().unwrap_or(Err(fault));
            safe = safe_there;
        }
    }
}

/// From server to server. Whoever sends us on has done nothing, so nothing is done twice.
struct Path {
    seat: Arc<Seat>,
    entry: Entry,
    hops: u32,
    waits: u32,
}

impl Path {
    fn from(seat: Arc<Seat>) -> Self {
        Path {
            seat,
            entry: Entry::Plain,
            hops: 0,
            waits: 0,
        }
    }

    /// To where the next try may be made, or the reason why there is none.
    async fn go_on(&mut self, cluster: &Cluster, fault: Fault) -> Result<(), Fault> {
        cluster.heed(&fault);
        if let Some(redirect) = fault.redirect() {
            let next = cluster.led(redirect, &self.seat);
            let Some(next) = next.filter(|_| self.hops < MOST_HOPS) else {
                return Err(fault.on_the_move());
            };
            (self.seat, self.entry) = (next, redirect.entry);
            self.hops += 1;
        } else if fault.code() == "TRYAGAIN" && self.waits < MOST_WAITS {
            tokio::time::sleep(WAIT).await;
            self.waits += 1;
        } else {
            return Err(fault);
        }
        Ok(())
    }
}
