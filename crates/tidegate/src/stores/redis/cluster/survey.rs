//! Asks for the map of a cluster: when something tells that it has changed, and now and then.
//!
//! Any server may be asked, also those that serve nothing; one that does not answer is given up after a
//! moment. A server that was cut off tells of the past: each answer comes with the highest epoch that
//! the server has heard of, and one behind what was known is used only when there has been no other for
//! a while. At most one survey in 100 ms, however many calls are sent elsewhere.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::map::{Primary, SlotMap};
use super::{Cluster, Seat, View, host};
use crate::stores::redis::access::{Access, Place};
use crate::stores::redis::fault::Fault;
use crate::stores::redis::lane::jittered;
use crate::stores::redis::link::{Errand, Link, RedisConfig};
use crate::stores::redis::memo::{Memo, SourceState};
use crate::stores::redis::redirect::Entry;
use crate::stores::redis::route::Route;

/// How often to ask although nothing tells of a change: a primary that hangs says nothing.
const EVERY: Duration = Duration::from_secs(1);
/// How soon after one survey the next may be; longer and longer while nothing new is told.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How long a server may take to answer. A connection may never be refused nor made.
const ASK_WITHIN: Duration = Duration::from_millis(500);
/// When only servers with a lower epoch have answered for so long, the cluster was made anew.
const BELIEVE_OLDER: Duration = Duration::from_secs(5);

/// Keeps the map of a cluster, as long as there is one.
pub(super) async fn keep(cluster: Weak<Cluster>, bell: Arc<Notify>) {
    let mut known = Known {
        epoch: 0,
        told: Instant::now(),
    };
    let (mut pause, mut rung) = (SHORTEST_PAUSE, true);
    loop {
        let found = match cluster.upgrade() {
            Some(cluster) => cluster.survey(&mut known).await,
            None => return,
        };
        pause = match found {
            Found::Same | Found::Nothing if rung => (pause * 2).min(LONGEST_PAUSE),
            _ => SHORTEST_PAUSE,
        };
        sleep(pause).await;
        rung = match found {
            Found::Nothing => true,
            _ => timeout(jittered(EVERY), bell.notified()).await.is_ok(),
        };
    }
}

/// How new the map is.
struct Known {
    epoch: u64,
    /// When it was last told.
    told: Instant,
}

impl Known {
    /// Whether a map of this epoch is used, the newest of all that were told `now`.
    fn takes(&mut self, epoch: u64, now: Instant) -> bool {
        let takes = epoch >= self.epoch || now.duration_since(self.told) > BELIEVE_OLDER;
        if takes {
            (self.epoch, self.told) = (epoch, now);
        }
        takes
    }
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Found {
    New,
    Same,
    Nothing,
}

/// Who is asked.
enum Source {
    Connected(Arc<Seat>),
    /// To be connected to, for this question only.
    At(Place),
}

/// What a server answered.
pub(super) struct Told {
    pub(super) map: SlotMap,
    pub(super) epoch: u64,
}

impl Cluster {
    async fn survey(&self, known: &mut Known) -> Found {
        let turn = self.surveys.fetch_add(1, Ordering::Relaxed);
        let mut best: Option<Told> = None;
        for source in self.sources(turn) {
            let told = match timeout(ASK_WITHIN, self.ask(&source)).await {
                Ok(Ok(told)) => told,
                Ok(Err(fault)) => {
                    self.last.store(Some(Arc::new(fault)));
                    continue;
                }
                Err(_) => continue,
            };
            if best.as_ref().is_none_or(|best| best.epoch < told.epoch) {
                best = Some(told);
            }
            if best.as_ref().is_some_and(|best| best.epoch >= known.epoch) {
                break;
            }
        }
        match best {
            Some(told) if known.takes(told.epoch, Instant::now()) => {
                self.last.store(None);
                self.adopt(told.map)
            }
            _ => Found::Nothing,
        }
    }

    /// The primaries that are connected, each first in its turn; then all others that are known.
    fn sources(&self, turn: u64) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut others: Vec<Place> = Vec::new();
        if let Some(view) = self.view.load().as_ref() {
            let first = usize::try_from(turn).unwrap_or(0) % view.seats.len().max(1);
            let (after, before) = view.seats.split_at(first);
            for seat in before.iter().chain(after) {
                match seat.link.stands() {
                    true => sources.push(Source::Connected(Arc::clone(seat))),
                    false => others.push(seat.place.clone()),
                }
            }
            others.splice(0..0, view.map.replicas.iter().cloned());
        }
        let mut told = HashSet::new();
        let others = others.into_iter().chain(self.seeds.iter().cloned());
        sources.extend(others.filter(|at| told.insert(at.clone())).map(Source::At));
        sources
    }

    async fn ask(&self, source: &Source) -> Result<Told, Fault> {
        match source {
            Source::Connected(seat) => {
                let (info, slots) = (command("INFO"), command("SLOTS"));
                let send = |command| seat.link.send(Errand::Command(command), Entry::Plain);
                let info = send(&info).await.0?;
                told(&info, &send(&slots).await.0?, &seat.place)
            }
            Source::At(place) => ask_at(place, &self.access, &self.config).await,
        }
    }

    /// Takes a map: keeps the ways to whom it still has, makes those to whom it has now.
    pub(super) fn adopt(&self, map: SlotMap) -> Found {
        let view = self.view.load_full();
        if view.as_ref().is_some_and(|view| view.map == map) {
            return Found::Same;
        }
        let known = view.as_ref().map_or(&[][..], |view| &view.seats[..]);
        let before = |part| known.iter().find(|seat| seat.part == part);
        let state = |memo: &Arc<Memo>| {
            let seat = known.iter().find(|seat| Arc::ptr_eq(&seat.memo, memo));
            seat.map_or(SourceState::Unmet, |seat| seat.state())
        };
        let memo_before = |part| before(part).map(|seat| &seat.memo);
        let mut memos = self.memos.lock();
        let memos = memos.take_over(&map, memo_before, state);
        let primaries = map.primaries.iter().zip(memos);
        let seats = primaries.map(|(now, memo)| self.seat_at(now, before(now.part), memo));
        match seats.collect() {
            Ok(seats) => {
                self.view.store(Some(Arc::new(View { map, seats })));
                Found::New
            }
            Err(fault) => {
                self.last.store(Some(Arc::new(fault)));
                Found::Nothing
            }
        }
    }

    fn seat_at(
        &self,
        now: &Primary,
        before: Option<&Arc<Seat>>,
        memo: Arc<Memo>,
    ) -> Result<Arc<Seat>, Fault> {
        if let Some(seat) = before.filter(|seat| seat.place == now.place) {
            return Ok(Arc::clone(seat));
        }
        let route = Route::Fixed {
            at: now.place.clone(),
            access: self.access.clone(),
        };
        let link = Link::open(&route, &self.config, &self.scripts, &self.gate)?;
        Ok(Arc::new(Seat {
            part: now.part,
            place: now.place.clone(),
            link,
            memo,
        }))
    }
}

/// Asks the server at `place` over a connection that is for this question only.
pub(super) async fn ask_at(
    place: &Place,
    access: &Access,
    config: &RedisConfig,
) -> Result<Told, Fault> {
    let client = access.client(place)?;
    let login = client.get_connection_info().redis_settings();
    let fault = |error: RedisError| Fault::of(&error, login.password());
    let waits = config.waits();
    let connection = client.get_multiplexed_async_connection_with_config(&waits);
    let mut connection = connection.await.map_err(fault)?;
    let info = command("INFO").query_async(&mut connection).await;
    let info: Value = info.map_err(fault)?;
    let slots = command("SLOTS").query_async(&mut connection).await;
    told(&info, &slots.map_err(fault)?, place)
}

fn command(about: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(about);
    command
}

/// What the server at `place` says of its cluster.
fn told(info: &Value, slots: &Value, place: &Place) -> Result<Told, Fault> {
    let info: String = redis::from_redis_value_ref(info).unwrap_or_default();
    let epoch = info
        .lines()
        .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
        .and_then(|epoch| epoch.trim().parse().ok());
    let map = SlotMap::read(slots, host(place));
    Ok(Told {
        map: map.map_err(|error| Fault::no_map(&error.to_string()))?,
        epoch: epoch.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A primary that was cut off answers as if nothing had happened; one that was made anew has
    /// forgotten how far the others were.
    #[test]
    fn an_older_map_is_used_only_when_there_has_been_no_other() {
        let began = Instant::now();
        let after = |secs| began + Duration::from_secs(secs);
        let mut known = Known {
            epoch: 7,
            told: began,
        };
        assert!(!known.takes(6, after(1)), "cut off");
        assert!(known.takes(7, after(4)));
        assert!(!known.takes(6, after(8)), "7 was told 4 s ago");
        assert!(known.takes(9, after(9)));
        assert!(!known.takes(3, after(14)));
        assert!(known.takes(3, after(15)), "made anew");
        assert!(known.takes(4, after(15)));
    }
}
