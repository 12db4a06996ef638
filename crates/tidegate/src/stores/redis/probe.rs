//! How the store is, and which nodes share it.
//!
//! A life ends when counts may have been lost: the server runs anew, another took over, or its data
//! is gone. The first two show when a connection is made (`run`), the last by the epoch in the
//! register of nodes, which is drawn anew when the register is gone, or older than what a node knows to have been
//! written. Each primary of a cluster has a register of its own, in one of its hash slots: a replica that takes over has
//! it too. When that hash slot moves, nodes sign in at another one and bring the epoch along.

use redis::Value;
use tidegate_core::store::{
    Beat, FailureCause, HeartbeatReply, Life, NodeId, PartId, Parts, Probe, Slot, StoreError,
    Vitals,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::cluster::Branch;
use super::fault::Fault;
use super::link::{Call, Errand, Link};
use super::memo::draw_epoch;
use super::redirect::Entry;
use super::reply::Nonsense;
use super::way::Way;
use super::{RedisStore, refused, scripts};

/// The register of nodes of a server that is alone.
pub(super) const NODES: &[u8] = b"tg:ctl:nodes";
/// How long a beat lasts, in milliseconds: many times as long as nodes take to renew it.
const LASTS: &[u8] = b"3000";
/// How long a register of a cluster stays without a beat, in milliseconds: its slot may have moved, and
/// nodes sign in elsewhere.
const STAYS: &[u8] = b"3600000";
/// Slots of a primary to try, when it is giving some away.
const MOST_TRIES: usize = 4;

/// When the latest beat of a register was, in milliseconds of the server's clock: of all that `HGETALL`
/// found in it, see `beat.lua`.
pub(super) fn newest_beat(register: &Value) -> Option<u64> {
    let values: Vec<&Value> = match register {
        Value::Array(fields) => fields.iter().skip(1).step_by(2).collect(),
        Value::Map(fields) => fields.iter().map(|(_, value)| value).collect(),
        _ => return None,
    };
    let beats = values.into_iter().filter_map(|value| {
        let Value::BulkString(text) = value else {
            return None;
        };
        let (at, _) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        at.parse().ok()
    });
    beats.max()
}

impl Probe for RedisStore {
    async fn beat(&self, beat: Beat) -> Result<Vitals, StoreError> {
        let known = self.memo.acknowledged.lock().clone();
        let sign = Sign {
            node: hex(beat.node.0),
            seeded: beat.seeded.map_or_else(String::new, |life| hex(life.0)),
            known_millis: known.millis().to_string(),
            known_run: known.run,
            known_since: self.memo.raised_since().millis_up().to_string(),
        };
        let began = std::time::Instant::now();
        let (answer, run) = match &self.way {
            Way::Straight(link) => sign.leave(link, &KnownRegister::alone()).await,
            Way::Branch(branch) => self.sign_in(branch, &sign).await,
        };
        let waited = Nanos::from(began.elapsed());
        let value = answer.map_err(|fault| fault.into_store_error(scripts::BEAT.name, waited))?;
        let told = Told::read(&value).ok_or_else(|| refused(scripts::BEAT, Nonsense::Shape))?;
        self.memo.note_epoch(told.epoch);
        self.memo.raise_since(told.since);
        self.memo.note_heartbeat(run, &told.run, told.at);
        let life = life(run, told.epoch);
        let reply = HeartbeatReply {
            life,
            epoch: told.epoch,
            at: told.at,
            found: told.found,
        };
        let whole_until = self.memo.restore_point.lock().note(beat.seeded, &reply);
        Ok(Vitals {
            life,
            at: told.at,
            whole_until,
            beats: told.beats,
        })
    }

    fn life(&self) -> Option<Life> {
        Some(life(self.way.run()?, self.memo.epoch()?))
    }

    fn take_lacking(&self) -> Vec<Slot> {
        self.memo.take_lacking()
    }

    fn cause(&self, error: &StoreError) -> FailureCause {
        let (StoreError::Unavailable { source, .. } | StoreError::Refused { source, .. }) = error;
        match source.downcast_ref::<Fault>() {
            Some(fault) => fault.cause(),
            None => FailureCause::of(error),
        }
    }

    fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        self.way.slot(subject)
    }
}

impl RedisStore {
    /// Signs in at a primary of a cluster, in a slot that it serves and is not giving away: what another
    /// answered would tell of another life.
    async fn sign_in(&self, branch: &Branch, sign: &Sign) -> (Result<Value, Fault>, u64) {
        let mut leaving = Vec::new();
        loop {
            let Some(found) = branch.register(&leaving) else {
                return (Err(Fault::not_served()), 0);
            };
            let known = self.memo.epoch();
            let signed_in = *self.memo.signed_in.lock();
            let register = KnownRegister {
                key: found.key(),
                // Where nobody has signed in because hash slots have moved, nothing was lost.
                new_epoch: known
                    .filter(|_| signed_in != Some(found.slot))
                    .unwrap_or_else(draw_epoch),
                known_epoch: known.map_or_else(String::new, hex),
                primary: found.id,
                stays: STAYS,
            };
            let (answer, run) = sign.leave(&found.seat.link, &register).await;
            match &answer {
                Ok(_) => *self.memo.signed_in.lock() = Some(found.slot),
                Err(fault) => {
                    branch.heed(fault, &found.seat);
                    leaving.push(found.slot);
                    if fault.redirect().is_some() && leaving.len() < MOST_TRIES {
                        continue;
                    }
                }
            }
            return (answer, run);
        }
    }
}

/// The register of a server, and what this node knows of it.
struct KnownRegister {
    key: Vec<u8>,
    /// The epoch of a register that is not there.
    new_epoch: u64,
    /// Empty if it is not known, or the server is alone.
    known_epoch: String,
    /// The server's id in its cluster. Empty if it is alone.
    primary: String,
    /// How long it stays without a heartbeat, in milliseconds. Empty for ever.
    stays: &'static [u8],
}

impl KnownRegister {
    /// That of a server that is alone.
    fn alone() -> Self {
        KnownRegister {
            key: NODES.to_vec(),
            new_epoch: draw_epoch(),
            known_epoch: String::new(),
            primary: String::new(),
            stays: b"",
        }
    }
}

/// A node's sign of life.
struct Sign {
    node: String,
    seeded: String,
    /// What was acknowledged last, and by which run.
    known_run: Vec<u8>,
    known_millis: String,
    /// Since when data is whole, if that is later than its epoch.
    known_since: String,
}

impl Sign {
    /// Leaves it in a register; and tells the run of the server.
    async fn leave(&self, link: &Link, register: &KnownRegister) -> (Result<Value, Fault>, u64) {
        let epoch = hex(register.new_epoch);
        let call = Call {
            script: scripts::BEAT,
            keys: std::slice::from_ref(&register.key),
            arguments: vec![
                self.node.as_bytes(),
                self.seeded.as_bytes(),
                epoch.as_bytes(),
                LASTS,
                register.stays,
                &self.known_run,
                self.known_millis.as_bytes(),
                register.known_epoch.as_bytes(),
                register.primary.as_bytes(),
                self.known_since.as_bytes(),
            ],
        };
        link.send(Errand::Script(&call), Entry::Plain).await
    }
}

/// One server is one part.
impl Parts for RedisStore {
    type Part = RedisStore;

    fn part_of(&self, _: Fingerprint) -> PartId {
        PartId(0)
    }

    fn part(&self, id: PartId) -> Option<RedisStore> {
        (id == PartId(0)).then(|| self.clone())
    }

    fn ids(&self) -> Vec<PartId> {
        vec![PartId(0)]
    }
}

fn life(run: u64, epoch: u64) -> Life {
    Life(crate::runtime::mix(run ^ crate::runtime::mix(epoch)))
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// One entry of the register, as `scripts/beat.lua` writes it: the node, and when it last beat.
pub(super) fn signed(node: &str, beat: &str) -> Option<(NodeId, Nanos)> {
    let node = u64::from_str_radix(node, 16)
        .ok()
        .filter(|_| node.len() == 16)?;
    let (millis, _seeded) = beat.split_once(' ')?;
    Some((NodeId(node), Nanos::from_millis(millis.parse().ok()?)))
}

/// What `scripts/beat.lua` answers.
struct Told {
    at: Nanos,
    epoch: u64,
    /// The run of the server, as the script names it.
    run: Vec<u8>,
    since: Nanos,
    /// The last heartbeat that the run found in its data.
    found: Nanos,
    beats: Vec<Beat>,
}

impl Told {
    fn read(value: &Value) -> Option<Told> {
        let Value::Array(values) = value else {
            return None;
        };
        let [secs, micros, epoch, run, since, found, beats @ ..] = values.as_slice() else {
            return None;
        };
        let decimal = |value| text(value)?.parse::<u64>().ok();
        let at = Nanos::from_secs(decimal(secs)?);
        let beat = |pair: &[Value]| {
            Some(Beat {
                node: NodeId(number(&pair[0])?),
                seeded: number(&pair[1]).map(Life),
            })
        };
        Some(Told {
            at: at.plus(Nanos::new(decimal(micros)?.saturating_mul(1_000))),
            epoch: number(epoch)?,
            run: text(run)?.into(),
            since: Nanos::from_millis(decimal(since)?),
            found: Nanos::from_millis(decimal(found)?),
            beats: beats.chunks_exact(2).filter_map(beat).collect(),
        })
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    u64::from_str_radix(text(value)?, 16).ok()
}
