//! `tidegate doctor`: looks at a store as the service would use it, and says what is wrong and the cure.
//!
//! One server, the primary that sentinels name, or every primary of a cluster.
//! Each group of checks has a file: what it reads, and, apart from that, what follows from it. Nothing
//! is changed but keys of its own, which it removes. Silence ends the look at a server; a refusal never
//! does: what cannot be seen is said, with the permission that would show it. No finding tells a
//! password or a secret.

mod cluster;
mod finding;
mod fleet;
mod keeping;
mod keys;
mod rights;
mod rules;
mod scripts;
mod seen;
mod server;
mod watched;

use std::path::PathBuf;
use std::time::Duration;

use tidegate::resilience::Tolerance;
use tidegate::stores::redis::{Console, Fault, Layout, RedisConfig, Site};
use tokio::time::sleep;

use self::cluster::Cluster;
pub(crate) use self::finding::Finding;
use self::keeping::Standing;
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
    let config = RedisConfig {
        connect_timeout: CONNECT_WITHIN,
        reply_timeout: ANSWER_WITHIN,
        ..RedisConfig::new(order.store.expose())
    };
    match patiently("the store", wait, Layout::find(&config)).await {
        Err(fault) => unusable(&fault, tell),
        Ok(Layout::One(site)) => alone(&site, &config, order, tell, wait).await,
        Ok(Layout::Watched { primary, sentinels }) => {
            let named = primary.as_ref().ok().map(Site::address);
            tell(watched::agreement(&sentinels, named.as_deref()));
            match primary {
                Ok(site) => alone(&site, &config, order, tell, wait).await,
                Err(fault) => unusable(&fault, tell),
            }
        }
        Ok(Layout::Cluster {
            primaries,
            unowned,
            silent,
        }) => {
            let cluster = Cluster {
                primaries,
                unowned,
                silent,
            };
            cluster.examine(order, &config, tell, wait).await
        }
    }
}

/// Examines a server that has every counter.
async fn alone(
    site: &Site,
    config: &RedisConfig,
    order: &Order,
    tell: &mut impl FnMut(Finding),
    wait: &impl Fn(&str),
) -> Reached {
    let console = match patiently("the store", wait, site.open(config)).await {
        Ok(console) => console,
        Err(fault) => return unusable(&fault, tell),
    };
    let found = format!("{} answers", console.address());
    tell(Finding::ok("reach", found));
    match look(&console, order, tell, wait).await {
        Ok(()) => Reached::Yes,
        Err(Silent(fault)) => {
            tell(stopped(&fault));
            Reached::No
        }
    }
}

fn unusable(fault: &Fault, tell: &mut impl FnMut(Finding)) -> Reached {
    tell(unreached(fault));
    match fault.is_silence() {
        true => Reached::No,
        false => Reached::Yes,
    }
}

/// The server could not be entered.
fn unreached(fault: &Fault) -> Finding {
    let problem = fault.problem();
    let found = if fault.is_silence() {
        format!("{problem}, so nothing else could be seen")
    } else {
        format!("the store cannot be used: {problem}")
    };
    Finding::fail("reach", found, fault.cure())
}

/// The server replied, and then it did not any more. A check of its own: it was reached.
fn stopped(fault: &Fault) -> Finding {
    let problem = fault.problem();
    let found = format!("the server stopped replying ({problem}), so nothing else could be seen");
    Finding::fail("silence", found, fault.cure())
}

/// Looks at one server.
async fn look(
    console: &Console,
    order: &Order,
    tell: &mut impl FnMut(Finding),
    wait: &impl Fn(&str),
) -> Result<(), Silent> {
    let info = Info::read(console).await?;
    tell(server::version(&info));
    let standing = match console.tag() {
        Some(_) => Standing::OfCluster,
        None => Standing::Alone,
    };
    if let (Standing::Alone, Some(wrong)) = (standing, keeping::misaddressed(&info)) {
        tell(wrong);
        return Ok(());
    }
    let pings = patiently("the round trip", wait, server::pings(console)).await?;
    tell(server::round_trip(pings, order.budget));
    let reading = patiently("the clock", wait, server::exchanges(console, order.clock)).await?;
    tell(server::clock(&reading));
    tell(keeping::eviction(&info));
    let prefix = prefix(console.tag());
    let trials = patiently("permissions", wait, rights::trials(console, &prefix)).await?;
    tell(rights::permissions(&trials));
    let rehearsed = patiently("scripts", wait, scripts::rehearse(console, &prefix)).await?;
    tell(scripts::scripts(&rehearsed, &info));
    let saving = keeping::saving(console).await?;
    tell(keeping::persistence(&info, &saving));
    tell(keeping::replication(&info, standing));
    if let Standing::OfCluster = standing {
        tell(cluster::full_coverage(console).await?);
    }
    let keys = patiently("keys", wait, keys::look(console)).await?;
    tell(keys::expiry(&keys));
    tell(keys::memory(&keys, &info, console.database()));
    tell(fleet::nodes(&seen(console.nodes().await)?));
    if console.keeps_secret() {
        tell(fleet::secret(console, order.secret_file.as_deref()).await?);
    }
    Ok(())
}

/// What our own keys begin with, with the tag that leads them to this server. Another doctor at the
/// same time has others.
fn prefix(tag: Option<&str>) -> String {
    let drawn = getrandom::u64().unwrap_or(0);
    let tag = tag.map_or_else(String::new, |tag| format!("{{{tag}}}"));
    format!("tg:ctl:doctor:{tag}{drawn:016x}")
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
