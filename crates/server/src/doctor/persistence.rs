//! What happens to counts when memory runs short, after a restart, and when the server is lost.

use tidegate::stores::redis::AdminConnection;

use super::finding::DoctorFinding;
use super::keys::size;
use super::probe::{ProbeResult, ServerInfo, SilentServer, config_setting};

/// The percentage of `maxmemory` in use that is worth a warning.
const NEARLY_FULL_PERCENT: u64 = 90;
/// Replicas report every second. A replica that has not reported for this long is not reliable.
const MAX_LAG_SECS: u64 = 10;
const REPLICATION: &str = "replication";
/// A bound on the number of replicas that a server reports.
const MAX_REPLICAS: u64 = 100;

pub(super) fn eviction(info: &ServerInfo) -> DoctorFinding {
    let check = "eviction";
    let used = info.number("used_memory").unwrap_or(0);
    let Some((max, policy)) = info.number("maxmemory").zip(info.text("maxmemory_policy")) else {
        return DoctorFinding::warn(check, "the server does not report its policy", "see its settings");
    };
    if max == 0 {
        let found = format!("{} in use, no maxmemory: nothing is evicted", size(used));
        return DoctorFinding::ok(check, found);
    }
    let found = format!("{policy}, {} of {} in use", size(used), size(max));
    if policy != "noeviction" {
        let evicted = info.number("evicted_keys").unwrap_or(0);
        let found = format!("{found}, {evicted} keys evicted: an evicted counter is forgotten");
        return DoctorFinding::warn(check, found, "CONFIG SET maxmemory-policy noeviction");
    }
    if u128::from(used) * 100 >= u128::from(max) * u128::from(NEARLY_FULL_PERCENT) {
        let found = found + ": when it is full, nodes decide by their shares";
        DoctorFinding::warn(check, found, "raise maxmemory")
    } else {
        DoctorFinding::ok(check, found)
    }
}

/// When the server writes to disk, by its settings.
#[derive(Clone, Debug)]
pub(super) struct PersistenceSettings {
    snapshots: String,
    fsync: String,
}

pub(super) async fn persistence_settings(
    connection: &AdminConnection,
) -> Result<ProbeResult<PersistenceSettings>, SilentServer> {
    let snapshots = match config_setting(connection, "save").await? {
        Ok(snapshots) => snapshots,
        Err(error) => return Ok(Err(error)),
    };
    let fsync = config_setting(connection, "appendfsync").await?;
    Ok(fsync.map(|fsync| PersistenceSettings { snapshots, fsync }))
}

pub(super) fn persistence(info: &ServerInfo, settings: &ProbeResult<PersistenceSettings>) -> DoctorFinding {
    let check = "persistence";
    let write_failure = |what: &str| {
        let found = format!("the server could not write its {what}");
        DoctorFinding::warn(check, found, "see its log and the room on its disk")
    };
    let failed = |name: &str| info.text(name) == Some("err");
    if failed("aof_last_write_status") || failed("aof_last_bgrewrite_status") {
        return write_failure("append-only file");
    }
    if failed("rdb_last_bgsave_status") {
        return write_failure("snapshot");
    }
    let append_only = info.number("aof_enabled") == Some(1);
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) if !append_only => {
            return DoctorFinding::hidden(check, "whether snapshots are made", error, "+config|get");
        }
        Err(_) => return DoctorFinding::ok(check, "append-only file: a restart forgets little"),
    };
    DoctorFinding::ok(check, restart_loss(append_only, settings, info))
}

/// What a restart forgets, in plain words.
fn restart_loss(append_only: bool, settings: &PersistenceSettings, info: &ServerInfo) -> String {
    let restore_note = "nodes restore what they last saw";
    match (append_only, settings.fsync.as_str()) {
        (true, "always") => "append-only file, written at once: a restart forgets nothing".into(),
        (true, "no") => format!(
            "append-only file, written when the system likes: a crash of the machine forgets the \
             last half minute or so; {restore_note}"
        ),
        (true, _) => format!(
            "append-only file, written every second: a crash of the machine forgets the last \
             second; {restore_note}"
        ),
        (false, _) if settings.snapshots.is_empty() => {
            format!("nothing is saved: a restart forgets every count; {restore_note}")
        }
        (false, _) => {
            let changes = info.number("rdb_changes_since_last_save").unwrap_or(0);
            format!(
                "snapshots (`save {}`): a crash now would forget {changes} changes; {restore_note}",
                settings.snapshots
            )
        }
    }
}

/// A server of a cluster that was configured as a single server.
pub(super) fn cluster_member_alone(info: &ServerInfo) -> Option<DoctorFinding> {
    (info.number("cluster_enabled") == Some(1)).then(|| {
        let found = "one server of a cluster: it has only some of the counters";
        DoctorFinding::fail(
            REPLICATION,
            found,
            "write redis+cluster://HOST:PORT, with TLS rediss+cluster://; nothing else was looked at",
        )
    })
}

/// Whether a server is part of a cluster.
#[derive(Clone, Copy)]
pub(super) enum ServerTopology {
    /// It has every counter.
    Standalone,
    /// It has some hash slots of a cluster.
    ClusterMember,
}

pub(super) fn replication(info: &ServerInfo, topology: ServerTopology) -> DoctorFinding {
    let check = REPLICATION;
    if info.text("role") == Some("slave") {
        let host = info.text("master_host").unwrap_or("?");
        let port = info.text("master_port").unwrap_or("?");
        let found = format!("a replica of {host}:{port}: nothing can be counted here");
        return DoctorFinding::fail(check, found, "give the address of the primary");
    }
    let replicas = info.number("connected_slaves").unwrap_or(0);
    if replicas > 0 {
        return replica_lag(check, info, replicas);
    }
    let found = "primary without a replica: while it is away nodes decide by their shares";
    match topology {
        ServerTopology::Standalone => DoctorFinding::ok(check, found),
        ServerTopology::ClusterMember => DoctorFinding::warn(
            check,
            found,
            "add one with redis-cli --cluster add-node NEW:PORT HOST:PORT --cluster-slave",
        ),
    }
}

/// How far replicas are behind.
fn replica_lag(check: &'static str, info: &ServerInfo, replicas: u64) -> DoctorFinding {
    let written = info.number("master_repl_offset").unwrap_or(0);
    let number = |name: &str, key| info.subfield(name, key)?.parse::<u64>().ok();
    let (mut behind, mut silent, mut away) = (0, 0, 0);
    for name in (0..replicas.min(MAX_REPLICAS)).map(|i| format!("slave{i}")) {
        behind = behind.max(written.saturating_sub(number(&name, "offset").unwrap_or(0)));
        silent = silent.max(number(&name, "lag").unwrap_or(0));
        away += u64::from(info.subfield(&name, "state") != Some("online"));
    }
    let found = format!("primary of {replicas}, the last {behind} bytes behind and last seen {silent} s ago");
    let cure = "see the logs of the replicas; what they lack is lost when they take over";
    if away > 0 || silent >= MAX_LAG_SECS {
        DoctorFinding::warn(check, format!("{found}, {away} not online"), cure)
    } else {
        DoctorFinding::ok(check, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(finding: DoctorFinding, begins: &str, text: &str) {
        let line = finding.line();
        assert!(line.starts_with(begins) && line.contains(text), "{line}");
    }

    fn info(text: &str) -> ServerInfo {
        ServerInfo::parse(text)
    }

    #[test]
    fn eviction_matters_where_there_is_a_bound() {
        let finding_for = |max, used, policy| {
            let text = format!("used_memory:{used}\nmaxmemory:{max}\nmaxmemory_policy:{policy}");
            eviction(&info(&text))
        };
        check(finding_for(0, 5, "allkeys-lru"), "ok ", "nothing is evicted");
        check(finding_for(100, 5, "noeviction"), "ok ", "noeviction");
        check(finding_for(100, 5, "allkeys-lru"), "warn", "forgotten");
        check(finding_for(100, 5, "volatile-ttl"), "warn", "noeviction");
        check(finding_for(100, 95, "noeviction"), "warn", "raise maxmemory");
        check(eviction(&info("")), "warn", "does not report");
    }

    #[test]
    fn persistence_reports_what_a_restart_loses() {
        let saving = |snapshots: &str, fsync: &str| {
            Ok(PersistenceSettings { snapshots: snapshots.to_owned(), fsync: fsync.to_owned() })
        };
        let finding_for = |text, saving| persistence(&info(text), &saving);
        check(finding_for("aof_enabled:0", saving("", "everysec")), "ok ", "every count");
        check(finding_for("aof_enabled:1", saving("", "everysec")), "ok ", "last second");
        check(finding_for("aof_enabled:1", saving("", "always")), "ok ", "forgets nothing");
        let text = "aof_enabled:0\nrdb_changes_since_last_save:7";
        check(finding_for(text, saving("60 1", "everysec")), "ok ", "7 changes");
        let text = "aof_enabled:0\nrdb_last_bgsave_status:err";
        check(finding_for(text, saving("60 1", "everysec")), "warn", "snapshot");
    }

    #[test]
    fn a_cluster_member_configured_as_a_single_server_is_a_failure() {
        let found = cluster_member_alone(&info("role:master\ncluster_enabled:1"));
        check(found.unwrap(), "FAIL", "redis+cluster://HOST:PORT");
        assert_eq!(cluster_member_alone(&info("cluster_enabled:0")), None);
    }

    #[test]
    fn a_replica_cannot_count_and_a_primary_lists_its_replicas() {
        let finding_for = |text: &str| replication(&info(text), ServerTopology::Standalone);
        check(finding_for("role:slave\nmaster_host:h\nmaster_port:1"), "FAIL", "h:1");
        let bare = "role:master\nconnected_slaves:0";
        check(finding_for(bare), "ok ", "without a replica");
        let in_cluster = replication(&info(bare), ServerTopology::ClusterMember);
        check(in_cluster, "warn", "without a replica");
        let with = |slave: &str| format!("role:master\nconnected_slaves:1\nmaster_repl_offset:90\nslave0:{slave}");
        let good = with("ip=a,port=1,state=online,offset=80,lag=1");
        check(finding_for(&good), "ok ", "10 bytes behind and last seen 1 s ago");
        check(finding_for(&with("ip=a,state=online,offset=80,lag=60")), "warn", "60 s ago");
        check(finding_for(&with("ip=a,state=wait_bgsave,offset=0,lag=0")), "warn", "1 not online");
    }
}
