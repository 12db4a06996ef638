//! Waiting for acknowledgements, and why there are too few, in words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tidegate_core::store::Unacknowledged;

use super::super::fault::Fault;
use super::super::lane::{Lane, Live};
use super::super::redirect::Entry;
use super::Safe;

/// How long one question lasts whether the writes have arrived since.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A replica tells how far its file is when it is asked, which is before it has written what it just heard,
/// and by itself once a second. So it is asked again, by waiting anew.
const ASK_FILES: Duration = Duration::from_millis(5);
/// The shortest wait there is: for what a server knows without hearing from a replica.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How long to wait before a server that cannot answer it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// A replica has it.
    Replica,
    /// It is on the disk of the server and of a replica.
    Aof,
}

impl Wait {
    /// Zero would mean for ever.
    pub(super) fn command(self, most: Duration) -> Cmd {
        let mut command = match self {
            Wait::Replica => redis::cmd("WAIT"),
            Wait::Aof => redis::cmd("WAITAOF"),
        };
        if self == Wait::Aof {
            command.arg(1);
        }
        let most = match self {
            Wait::Replica => most,
            Wait::Aof => most.min(ASK_FILES),
        };
        command.arg(1).arg(millis(most));
        command
    }

    fn is_enough(self, count: &Value) -> bool {
        match (self, count) {
            (Wait::Replica, Value::Int(replicas)) => *replicas > 0,
            (Wait::Aof, Value::Array(counts)) => {
                matches!(counts[..], [Value::Int(1..), Value::Int(1..)])
            }
            _ => false,
        }
    }

    /// Waits anew until enough have acknowledged or `until` has come; the last count.
    pub(super) async fn go_on(
        self,
        lane: &Lane,
        live: &Arc<Live>,
        mut count: Result<Value, Fault>,
        until: Instant,
    ) -> Result<Value, Fault> {
        while count.as_ref().is_ok_and(|count| !self.is_enough(count)) {
            let left = until.saturating_duration_since(Instant::now());
            if left < Duration::from_millis(1) {
                break;
            }
            lane.blocks_for(left);
            count = lane.send(live, &self.command(left), Entry::Plain).await;
        }
        count
    }
}

/// Whether a connection can wait at all. A server without a replica is found out at once; a replica that is
/// connected has up to `most` to acknowledge what came before.
pub(super) async fn can_wait(lane: &Lane, live: &Arc<Live>, wait: Wait, most: Duration) -> Safe {
    let until = Instant::now() + most;
    lane.blocks_for(AT_ONCE);
    let count = lane.send(live, &wait.command(AT_ONCE), Entry::Plain).await;
    if count.as_ref().is_ok_and(|count| !wait.is_enough(count)) && has_no_replica(lane, live).await
    {
        return Err(Unacknowledged(NO_REPLICA.to_owned()));
    }
    let count = wait.go_on(lane, live, count, until).await;
    judged(lane, live, wait, count).await
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

async fn acknowledged(lane: &Lane, live: &Arc<Live>, wait: Wait, most: Duration) -> Safe {
    let until = Instant::now() + most;
    lane.blocks_for(most);
    let count = lane.send(live, &wait.command(most), Entry::Plain).await;
    let count = wait.go_on(lane, live, count, until).await;
    judged(lane, live, wait, count).await
}

/// Asks once more, and not at once again if the server cannot say.
pub(super) async fn asked_again(lane: &Lane, live: &Arc<Live>, wait: Wait) -> Safe {
    let asked = Instant::now();
    let safe = acknowledged(lane, live, wait, ASK_AGAIN).await;
    if safe.is_err() && asked.elapsed() < ASK_AGAIN / 2 {
        tokio::time::sleep(PAUSE).await;
    }
    safe
}

/// What the reply to a wait means, in words. The words are the same as long as the cause is.
pub(super) async fn judged(
    lane: &Lane,
    live: &Arc<Live>,
    wait: Wait,
    count: Result<Value, Fault>,
) -> Safe {
    let why = match (wait, count) {
        (_, Err(fault)) => cannot(&fault),
        (_, Ok(count)) if wait.is_enough(&count) => return Ok(()),
        _ if has_no_replica(lane, live).await => NO_REPLICA.to_owned(),
        (Wait::Replica, Ok(_)) => SLOW_REPLICA.to_owned(),
        (Wait::Aof, Ok(Value::Array(counts))) if matches!(counts[..], [Value::Int(1..), _]) => {
            SLOW_REPLICA_DISK.to_owned()
        }
        (Wait::Aof, Ok(_)) => SLOW_DISK.to_owned(),
    };
    Err(Unacknowledged(why))
}

const NO_REPLICA: &str = "no replica is connected; connect one, or write `durability: none`";
const SLOW_REPLICA: &str = "no replica acknowledged in time; see whether one can keep up";
const SLOW_REPLICA_DISK: &str = "no replica had it on its disk in time; see whether one has \
                                 `appendonly yes` and `appendfsync always`";
const SLOW_DISK: &str =
    "the server did not have it on its disk in time; see whether it has `appendfsync always`";

fn cannot(fault: &Fault) -> String {
    // Names no address and no user, unlike the fault itself.
    let text = fault.cause().text;
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

async fn has_no_replica(lane: &Lane, live: &Arc<Live>) -> bool {
    let mut ask = redis::cmd("INFO");
    ask.arg("replication");
    let told = lane.send(live, &ask, Entry::Plain).await.ok();
    let told = told.and_then(|told| redis::from_redis_value::<String>(told).ok());
    told.is_some_and(|told| told.contains("connected_slaves:0"))
}
