//! How the store is, and which nodes share it.
//!
//! A life ends when counts may have been lost: the server runs anew, another took over, or its data
//! is gone. The first two show when a connection is made (`run`), the last by the epoch in the
//! register of nodes, which is drawn anew when the register is gone.

use std::hash::{BuildHasher, RandomState};

use redis::Value;
use tidegate_core::store::{Beat, Life, NodeId, Probe, StoreError, Vitals};
use tidegate_core::units::Nanos;

use super::link::Call;
use super::reply::Nonsense;
use super::{Ordering, RedisStore, refused, scripts};

/// The register of nodes.
pub(super) const NODES: &[u8] = b"tg:ctl:nodes";
/// How long a beat lasts, in milliseconds: many times as long as nodes take to renew it.
const LASTS: &[u8] = b"3000";

impl Probe for RedisStore {
    async fn beat(&self, beat: Beat) -> Result<Vitals, StoreError> {
        let node = hex(beat.node.0);
        let seeded = beat.seeded.map_or_else(String::new, |life| hex(life.0));
        // Drawn anew each time: the one that a store has lost must not come back.
        let epoch = hex(RandomState::new().hash_one(0).max(1));
        let call = Call {
            script: scripts::BEAT,
            keys: &[NODES.to_vec()],
            arguments: vec![node.as_bytes(), seeded.as_bytes(), epoch.as_bytes(), LASTS],
        };
        let began = std::time::Instant::now();
        let (answer, run) = self.link.call_and_run(&call).await;
        let waited = Nanos::from(began.elapsed());
        let value = answer.map_err(|fault| fault.into_store_error(scripts::BEAT.name, waited))?;
        let told = Told::read(&value).ok_or_else(|| refused(scripts::BEAT, Nonsense::Shape))?;
        self.epoch.store(told.epoch, Ordering::Relaxed);
        Ok(Vitals {
            life: life(run, told.epoch),
            at: told.at,
            beats: told.beats,
        })
    }

    fn life(&self) -> Option<Life> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let run = self.link.run()?;
        (epoch != 0).then(|| life(run, epoch))
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
    beats: Vec<Beat>,
}

impl Told {
    fn read(value: &Value) -> Option<Told> {
        let Value::Array(values) = value else {
            return None;
        };
        let [secs, micros, epoch, beats @ ..] = values.as_slice() else {
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
