//! `tidegate doctor`: examines a store as the service would use it, and reports what is wrong and the cure.
//!
//! The store is one server, the primary that sentinels name, or every primary of a cluster. Each group of checks
//! has a file, in which reading and judging are separate.
//!
//! Invariant: the doctor changes nothing but its own keys, which it removes. A server that does not reply ends its
//! examination; a rejected command never does: the finding names what cannot be seen and the permission that would
//! show it. No finding contains a password or a secret.

mod cluster;
mod finding;
mod fleet;
mod keys;
mod permissions;
mod persistence;
mod probe;
mod rules;
mod scripts;
mod sentinel;
mod server;

use std::time::Duration;

use tidegate::stores::redis::{AdminConnection, RedisConfig, RedisServer, RedisStoreError, RedisTopology};
use tokio::time::sleep;

use self::cluster::ClusterExamination;
pub(crate) use self::finding::DoctorFinding;
use self::persistence::ServerTopology;
pub(crate) use self::probe::SilentServer;
use self::probe::{ServerInfo, unless_silent};
use crate::config::ServerSettings;

/// Longer than any usable server takes, shorter than an operator waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Steps that take longer than this are announced.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// Whether the store was reached.
pub(crate) enum Reached {
    /// The store was examined.
    Yes,
    /// No server replied, or the replies stopped.
    No,
}

/// Examines the store at `url`, as a service with these settings would use it. Each finding is reported as soon as it is there, and slow steps are announced.
pub(crate) async fn examine(
    url: &str,
    options: &ServerSettings,
    report: &mut impl FnMut(DoctorFinding),
    announce: &impl Fn(&str),
) -> Reached {
    if let Some(path) = &options.rules.path {
        rules::rules(path).into_iter().for_each(&mut *report);
    }
    let config =
        RedisConfig { connect_timeout: CONNECT_TIMEOUT, reply_timeout: REPLY_TIMEOUT, ..RedisConfig::new(url) };
    match announce_if_slow("the store", announce, RedisTopology::find(&config)).await {
        Err(error) => report_unusable(&error, report),
        Ok(RedisTopology::SingleServer(server)) => examine_single(&server, &config, options, report, announce).await,
        Ok(RedisTopology::Sentinel { primary, sentinels }) => {
            let named = primary.as_ref().ok().map(RedisServer::address);
            report(sentinel::agreement(&sentinels, named.as_deref()));
            match primary {
                Ok(server) => examine_single(&server, &config, options, report, announce).await,
                Err(error) => report_unusable(&error, report),
            }
        }
        Ok(RedisTopology::Cluster { primaries, unowned, unreachable: silent }) => {
            let cluster = ClusterExamination { primaries, unowned_slots: unowned, unreachable: silent };
            cluster.examine(options, &config, report, announce).await
        }
    }
}

/// Examines a server that has every counter.
async fn examine_single(
    server: &RedisServer,
    config: &RedisConfig,
    options: &ServerSettings,
    report: &mut impl FnMut(DoctorFinding),
    announce: &impl Fn(&str),
) -> Reached {
    let connection = match announce_if_slow("the store", announce, server.open(config)).await {
        Ok(connection) => connection,
        Err(error) => return report_unusable(&error, report),
    };
    let found = format!("{} replies", connection.address());
    report(DoctorFinding::ok("reach", found));
    match examine_server(&connection, options, report, announce).await {
        Ok(()) => Reached::Yes,
        Err(SilentServer(error)) => {
            report(stopped_replying(&error));
            Reached::No
        }
    }
}

fn report_unusable(error: &RedisStoreError, report: &mut impl FnMut(DoctorFinding)) -> Reached {
    report(unreachable_store(error));
    if error.is_silence() { Reached::No } else { Reached::Yes }
}

/// The connection or the login failed.
fn unreachable_store(error: &RedisStoreError) -> DoctorFinding {
    let problem = error.problem();
    let found = if error.is_silence() {
        format!("{problem}, so nothing else could be seen")
    } else {
        format!("the store cannot be used: {problem}")
    };
    DoctorFinding::fail("reach", found, error.cure())
}

/// The server stopped replying during the examination. A separate check, because it was reached.
fn stopped_replying(error: &RedisStoreError) -> DoctorFinding {
    let problem = error.problem();
    let found = format!("the server stopped replying ({problem}), so nothing else could be seen");
    DoctorFinding::fail("silence", found, error.cure())
}

/// Examines one server.
async fn examine_server(
    connection: &AdminConnection,
    options: &ServerSettings,
    report: &mut impl FnMut(DoctorFinding),
    announce: &impl Fn(&str),
) -> Result<(), SilentServer> {
    let info = ServerInfo::read(connection).await?;
    let of_info = |check, what, judge: &dyn Fn(&ServerInfo) -> DoctorFinding| {
        DoctorFinding::of_probe(check, &info, (what, "+info"), judge)
    };
    report(of_info("version", "the version", &server::version));
    let topology = match connection.tag() {
        Some(_) => ServerTopology::ClusterMember,
        None => ServerTopology::Standalone,
    };
    if let (ServerTopology::Standalone, Ok(info)) = (topology, &info)
        && let Some(wrong) = persistence::cluster_member_alone(info)
    {
        report(wrong);
        return Ok(());
    }
    let pings = announce_if_slow("the round trip", announce, server::pings(connection)).await?;
    report(server::round_trip(pings, options.store_budget));
    let reading = announce_if_slow("the clock", announce, server::clock_exchanges(connection, options.clock)).await?;
    report(DoctorFinding::of_probe("clock", &reading, ("the server's clock", "+time"), server::clock));
    report(of_info("eviction", "the eviction policy", &persistence::eviction));
    let prefix = prefix(connection.tag());
    let trials = announce_if_slow("permissions", announce, permissions::try_commands(connection, &prefix)).await?;
    report(permissions::permissions(&trials));
    let self_test = announce_if_slow("scripts", announce, scripts::self_test(connection, &prefix)).await?;
    report(scripts::scripts(&self_test, &info));
    let saving = persistence::persistence_settings(connection).await?;
    report(of_info("persistence", "what is saved", &|info| persistence::persistence(info, &saving)));
    report(of_info("replication", "replication", &|info| persistence::replication(info, topology)));
    if let ServerTopology::ClusterMember = topology {
        report(cluster::full_coverage(connection).await?);
    }
    let keys = announce_if_slow("keys", announce, keys::sample_keys(connection)).await?;
    let hidden = ("whether every counter will expire", "+scan +ttl");
    report(DoctorFinding::of_probe("expiry", &keys, hidden, keys::expiry));
    let memory = |keys: &_| keys::memory(keys, &info, connection.database());
    report(DoctorFinding::of_probe("memory", &keys, ("the memory of our keys", "+scan"), memory));
    let nodes = unless_silent(connection.nodes().await)?;
    report(DoctorFinding::of_probe("nodes", &nodes, ("the registered nodes", "+hgetall +time"), |nodes| {
        fleet::nodes(nodes)
    }));
    if connection.has_secret() {
        report(fleet::secret(connection, options.secret_file.as_deref()).await?);
    }
    Ok(())
}

/// The prefix of the doctor's own keys, with the hash tag that routes them to this server. Concurrent doctors have
/// different prefixes.
fn prefix(tag: Option<&str>) -> String {
    let random = getrandom::u64().unwrap_or(0);
    let tag = tag.map_or_else(String::new, |tag| format!("{{{tag}}}"));
    format!("tg:ctl:doctor:{tag}{random:016x}")
}

/// Runs `work`, and announces it if it takes long.
async fn announce_if_slow<T>(what: &str, announce: &impl Fn(&str), work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = sleep(ANNOUNCE_AFTER) => announce(what),
    }
    work.await
}
