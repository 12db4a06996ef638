//! Waits for acknowledgements, and explains why there are too few.

use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tidegate_core::store::UnacknowledgedError;

use super::super::connection::{ActiveConnection, RedisReply};
use super::super::error::RedisStoreError;
use super::super::redirect::SendMode;
use super::DurabilityResult;

/// The length of one repeated wait.
const RECHECK_TIMEOUT: Duration = Duration::from_millis(200);
/// A replica reports the position of its file when it is queried, which is before it has written the newest bytes,
/// and once a second on its own. So it is queried again, by a new wait.
const AOF_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The shortest wait: for what a server knows without a reply of a replica.
const MIN_WAIT: Duration = Duration::from_millis(1);
/// The pause before the next wait at a server that replied with an error.
const RECHECK_PAUSE: Duration = Duration::from_secs(1);

/// The acknowledgement to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitKind {
    /// A replica has the write.
    Replica,
    /// The write is on the disk of the server and of a replica.
    Aof,
}

impl WaitKind {
    /// The command. At least 1 ms, because 0 would mean to wait forever.
    pub(super) fn command(self, max: Duration) -> Cmd {
        let (mut command, max) = match self {
            WaitKind::Replica => (redis::cmd("WAIT"), max),
            WaitKind::Aof => (redis::cmd("WAITAOF"), max.min(AOF_POLL_INTERVAL)),
        };
        if self == WaitKind::Aof {
            command.arg(1);
        }
        command.arg(1).arg(u64::try_from(max.as_millis()).unwrap_or(u64::MAX).max(1));
        command
    }

    fn is_enough(self, count: &Value) -> bool {
        match (self, count) {
            (WaitKind::Replica, Value::Int(replicas)) => *replicas > 0,
            (WaitKind::Aof, Value::Array(counts)) => {
                matches!(counts[..], [Value::Int(1..), Value::Int(1..)])
            }
            _ => false,
        }
    }

    /// Sends one wait.
    async fn send(self, active: &ActiveConnection, max: Duration) -> RedisReply {
        active.expect_block_for(max);
        active.send(&self.command(max), SendMode::Plain).await
    }

    /// Whether a connection can wait at all. A server without a replica fails at once; a connected replica has up to
    /// `max` to acknowledge earlier writes.
    pub(super) async fn can_wait(self, active: &ActiveConnection, max: Duration) -> DurabilityResult {
        let until = Instant::now() + max;
        let count = self.send(active, MIN_WAIT).await;
        if count.as_ref().is_ok_and(|count| !self.is_enough(count)) && has_no_replica(active).await {
            return Err(UnacknowledgedError(NO_REPLICA.to_owned()));
        }
        self.wait_until(active, count, until).await
    }

    /// Waits once more. If that fails early, pauses before it returns.
    pub(super) async fn recheck(self, active: &ActiveConnection) -> DurabilityResult {
        let began = Instant::now();
        let count = self.send(active, RECHECK_TIMEOUT).await;
        let durability = self.wait_until(active, count, began + RECHECK_TIMEOUT).await;
        if durability.is_err() && began.elapsed() < RECHECK_TIMEOUT / 2 {
            tokio::time::sleep(RECHECK_PAUSE).await;
        }
        durability
    }

    /// Repeats a wait, whose reply was `count`, until enough servers have acknowledged or `until` is reached. The text
    /// of an error is the same as long as the cause is.
    pub(super) async fn wait_until(
        self,
        active: &ActiveConnection,
        mut count: RedisReply,
        until: Instant,
    ) -> DurabilityResult {
        while count.as_ref().is_ok_and(|count| !self.is_enough(count)) {
            let left = until.saturating_duration_since(Instant::now());
            if left < MIN_WAIT {
                break;
            }
            count = self.send(active, left).await;
        }
        let reason = match (self, count) {
            (_, Err(error)) => failure_text(&error),
            (_, Ok(count)) if self.is_enough(&count) => return Ok(()),
            _ if has_no_replica(active).await => NO_REPLICA.to_owned(),
            (WaitKind::Replica, Ok(_)) => SLOW_REPLICA.to_owned(),
            (WaitKind::Aof, Ok(Value::Array(counts))) if matches!(counts[..], [Value::Int(1..), _]) => {
                SLOW_REPLICA_DISK.to_owned()
            }
            (WaitKind::Aof, Ok(_)) => SLOW_DISK.to_owned(),
        };
        Err(UnacknowledgedError(reason))
    }
}

const NO_REPLICA: &str = "no replica is connected; connect one, or write `durability: none`";
const SLOW_REPLICA: &str = "no replica acknowledged in time; see whether one can keep up";
const SLOW_REPLICA_DISK: &str = "no replica had it on its disk in time; see whether one has \
                                 `appendonly yes` and `appendfsync always`";
const SLOW_DISK: &str = "the server did not have it on its disk in time; see whether it has `appendfsync always`";

fn failure_text(error: &RedisStoreError) -> String {
    // Contains no address and no user, unlike the error itself.
    let text = error.cause().text;
    if text.contains("unknown command") {
        return "the server does not know WAITAOF, which came with Redis and Valkey 7.2; write \
                `durability: replica`"
            .to_owned();
    }
    if text.contains("appendonly is disabled") {
        return "the server keeps no append-only file; set `appendonly yes` there, or write \
                `durability: replica`"
            .to_owned();
    }
    text.as_ref().to_owned()
}

async fn has_no_replica(active: &ActiveConnection) -> bool {
    let mut command = redis::cmd("INFO");
    command.arg("replication");
    let info = active.send(&command, SendMode::Plain).await.ok();
    let info = info.and_then(|info| redis::from_redis_value::<String>(info).ok());
    info.is_some_and(|info| info.contains("connected_slaves:0"))
}
