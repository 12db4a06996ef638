//! `tidegate doctor`: looks at a store as the service would use it, and says what is wrong and the cure.
//!
//! Each group of checks has a file: what it reads, and, apart from that, what follows from it. Nothing
//! is changed but keys of its own, which it removes. Silence ends the examination; a refusal never
//! does: what cannot be seen is said, with the permission that would show it. No finding tells a
//! password or a secret.

mod finding;
mod fleet;
mod keeping;
mod keys;
mod rights;
mod rules;
mod scripts;
mod seen;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use tidegate::resilience::Tolerance;
use tidegate::stores::redis::{Console, Fault, RedisConfig};
use tokio::time::sleep;

pub(crate) use self::finding::Finding;
pub(crate) use self::seen::Silent;
use self::seen::{Info, seen};
use crate::store_choice::StoreUrl;

/// Longer than any server takes that is of use, shorter than an operator waits.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// What takes longer than this is announced.
const LONG: Duration = Duration::from_secs(1);

/// What to examine, and by which measure.
pub(crate) struct Order {
    pub(crate) store: StoreUrl,
    pub(crate) rules: Option<PathBuf>,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) budget: Duration,
    pub(crate) clock: Tolerance,
}

/// How an examination ended.
pub(crate) enum Reached {
    /// The store was looked at.
    Yes,
    /// Nobody answered, or nobody any more.
    No,
}

/// Examines a store; every finding is told as soon as it is there, and so is what takes long.
pub(crate) async fn examine(
    order: &Order,
    tell: &mut impl FnMut(Finding),
    wait: &impl Fn(&str),
) -> Reached {
    if let Some(path) = &order.rules {
        rules::rules(path).into_iter().for_each(&mut *tell);
    }
    let console = match patiently("the store", wait, open(order)).await {
        Ok(console) => console,
        Err(fault) => {
            let silent = fault.is_silence();
            tell(unreached(&fault));
            return if silent { Reached::No } else { Reached::Yes };
        }
    };
    tell(Finding::ok(
        "reach",
        format!("{} answers", console.address()),
    ));
    match look(&console, order, tell, wait).await {
        Ok(()) => Reached::Yes,
        Err(Silent(fault)) => {
            tell(unreached(&fault));
            Reached::No
        }
    }
}

/// The one place that connects: other ways to a store are to be added here.
async fn open(order: &Order) -> Result<Console, Fault> {
    let config = RedisConfig {
        connect_timeout: CONNECT_WITHIN,
        reply_timeout: ANSWER_WITHIN,
        ..RedisConfig::new(order.store.expose())
    };
    Console::open(&config).await
}

/// What a fault says has its cure in it.
fn unreached(fault: &Fault) -> Finding {
    let found = match fault.is_silence() {
        true => fault.to_string(),
        false => format!("the store cannot be used: {fault}"),
    };
    Finding::fail("reach", found, "nothing else could be seen")
}

async fn look(
    console: &Console,
    order: &Order,
    tell: &mut impl FnMut(Finding),
    wait: &impl Fn(&str),
) -> Result<(), Silent> {
    let info = Info::read(console).await?;
    tell(server::version(&info));
    let pings = patiently("the round trip", wait, server::pings(console)).await?;
    tell(server::round_trip(pings, order.budget));
    let reading = patiently("the clock", wait, server::exchanges(console, order.clock)).await?;
    tell(server::clock(&reading));
    tell(keeping::eviction(&info));
    let prefix = prefix();
    let trials = patiently("permissions", wait, rights::trials(console, &prefix)).await?;
    tell(rights::permissions(&trials));
    let rehearsed = patiently("scripts", wait, scripts::rehearse(console, &prefix)).await?;
    tell(scripts::scripts(&rehearsed, &info));
    let saving = keeping::saving(console).await?;
    tell(keeping::persistence(&info, &saving));
    tell(keeping::replication(&info));
    let keys = patiently("keys", wait, keys::look(console)).await?;
    tell(keys::expiry(&keys));
    tell(keys::memory(&keys, &info, console.database()));
    tell(fleet::nodes(&seen(console.nodes().await)?));
    tell(fleet::secret(console, order.secret_file.as_deref()).await?);
    Ok(())
}

/// What our own keys begin with. Another doctor at the same time has others.
fn prefix() -> String {
    let drawn = getrandom::u64().unwrap_or(0);
    format!("tg:ctl:doctor:{drawn:016x}")
}

/// Does `work`, and says what it is at if that takes long.
async fn patiently<T>(what: &str, wait: &impl Fn(&str), work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = sleep(LONG) => wait(what),
    }
    work.await
}
