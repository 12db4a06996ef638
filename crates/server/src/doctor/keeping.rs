//! What becomes of counts: when memory is short, after a restart, and when the server is lost.

use tidegate::stores::redis::Console;

use super::finding::Finding;
use super::keys::size;
use super::seen::{Info, Seen, Silent, setting};

/// So much of `maxmemory` in use is worth knowing, in hundredths.
const NEARLY_FULL: u64 = 90;
/// A replica that is heard of less often is not to be counted on. They report every second.
const LAG_SECS: u64 = 10;
const REPLICATION: &str = "replication";
/// However many a server claims to have.
const MOST_REPLICAS: u64 = 100;

pub(super) fn eviction(info: &Seen<Info>) -> Finding {
    let check = "eviction";
    let info = match info {
        Ok(info) => info,
        Err(why) => return Finding::unseen(check, "the eviction policy", why, "+info"),
    };
    let used = info.number("used_memory").unwrap_or(0);
    let Some((most, policy)) = info.number("maxmemory").zip(info.text("maxmemory_policy")) else {
        return Finding::warn(
            check,
            "the server does not tell its policy",
            "see its settings",
        );
    };
    if most == 0 {
        let found = format!("{} in use, no maxmemory: nothing is evicted", size(used));
        return Finding::ok(check, found);
    }
    let found = format!("{policy}, {} of {} in use", size(used), size(most));
    if policy != "noeviction" {
        let evicted = info.number("evicted_keys").unwrap_or(0);
        let found = format!("{found}, {evicted} keys evicted: an evicted counter is forgotten");
        return Finding::warn(check, found, "CONFIG SET maxmemory-policy noeviction");
    }
    match u128::from(used) * 100 >= u128::from(most) * u128::from(NEARLY_FULL) {
        true => {
            let found = found + ": when it is full, nodes decide by their shares";
            Finding::warn(check, found, "raise maxmemory")
        }
        false => Finding::ok(check, found),
    }
}

/// When the server writes to disk, as it is set.
#[derive(Clone, Debug)]
pub(super) struct Saving {
    snapshots: String,
    fsync: String,
}

pub(super) async fn saving(console: &Console) -> Result<Seen<Saving>, Silent> {
    let snapshots = match setting(console, "save").await? {
        Ok(snapshots) => snapshots,
        Err(refused) => return Ok(Err(refused)),
    };
    let fsync = setting(console, "appendfsync").await?;
    Ok(fsync.map(|fsync| Saving { snapshots, fsync }))
}

pub(super) fn persistence(info: &Seen<Info>, saving: &Seen<Saving>) -> Finding {
    let check = "persistence";
    let info = match info {
        Ok(info) => info,
        Err(why) => return Finding::unseen(check, "what is saved", why, "+info"),
    };
    let cannot = |what: &str| {
        let found = format!("the server could not write its {what}");
        Finding::warn(check, found, "see its log and the room on its disk")
    };
    let failed = |name: &str| info.text(name) == Some("err");
    if failed("aof_last_write_status") || failed("aof_last_bgrewrite_status") {
        return cannot("append-only file");
    }
    if failed("rdb_last_bgsave_status") {
        return cannot("snapshot");
    }
    let append_only = info.number("aof_enabled") == Some(1);
    let saving = match saving {
        Ok(saving) => saving,
        Err(why) if !append_only => {
            return Finding::unseen(check, "whether snapshots are made", why, "+config|get");
        }
        Err(_) => return Finding::ok(check, "append-only file: a restart forgets little"),
    };
    Finding::ok(check, forgets(append_only, saving, info))
}

/// What a restart forgets, told plainly.
fn forgets(append_only: bool, saving: &Saving, info: &Info) -> String {
    let put_back = "nodes put back what they last saw";
    match (append_only, saving.fsync.as_str()) {
        (true, "always") => "append-only file, written at once: a restart forgets nothing".into(),
        (true, "no") => format!(
            "append-only file, written when the system likes: a crash of the machine forgets the \
             last half minute or so; {put_back}"
        ),
        (true, _) => format!(
            "append-only file, written every second: a crash of the machine forgets the last \
             second; {put_back}"
        ),
        (false, _) if saving.snapshots.is_empty() => {
            format!("nothing is saved: a restart forgets every count; {put_back}")
        }
        (false, _) => {
            let changes = info.number("rdb_changes_since_last_save").unwrap_or(0);
            format!(
                "snapshots (`save {}`): a crash now would forget {changes} changes; {put_back}",
                saving.snapshots
            )
        }
    }
}

/// A server of a cluster that was written as if it were alone.
pub(super) fn misaddressed(info: &Seen<Info>) -> Option<Finding> {
    let info = info.as_ref().ok()?;
    (info.number("cluster_enabled") == Some(1)).then(|| {
        let found = "one server of a cluster: it has only some of the counters";
        Finding::fail(
            REPLICATION,
            found,
            "write redis+cluster://HOST:PORT, with TLS rediss+cluster://; nothing else was looked at",
        )
    })
}

/// Whom a server counts with.
#[derive(Clone, Copy)]
pub(super) enum Standing {
    /// It has every counter.
    Alone,
    /// It has some slots of a cluster.
    OfCluster,
}

pub(super) fn replication(info: &Seen<Info>, standing: Standing) -> Finding {
    let check = REPLICATION;
    let info = match info {
        Ok(info) => info,
        Err(why) => return Finding::unseen(check, "replication", why, "+info"),
    };
    if info.text("role") == Some("slave") {
        let host = info.text("master_host").unwrap_or("?");
        let port = info.text("master_port").unwrap_or("?");
        let found = format!("a replica of {host}:{port}: nothing can be counted here");
        return Finding::fail(check, found, "give the address of the primary");
    }
    let replicas = info.number("connected_slaves").unwrap_or(0);
    if replicas > 0 {
        return lag(check, info, replicas);
    }
    let found = "primary without a replica: while it is away nodes decide by their shares";
    match standing {
        Standing::Alone => Finding::ok(check, found),
        Standing::OfCluster => Finding::warn(
            check,
            found,
            "add one with redis-cli --cluster add-node NEW:PORT HOST:PORT --cluster-slave",
        ),
    }
}

/// How far replicas are behind.
fn lag(check: &'static str, info: &Info, replicas: u64) -> Finding {
    let written = info.number("master_repl_offset").unwrap_or(0);
    let number = |name: &str, part| info.part(name, part)?.parse::<u64>().ok();
    let (mut behind, mut silent, mut away) = (0, 0, 0);
    for name in (0..replicas.min(MOST_REPLICAS)).map(|i| format!("slave{i}")) {
        behind = behind.max(written.saturating_sub(number(&name, "offset").unwrap_or(0)));
        silent = silent.max(number(&name, "lag").unwrap_or(0));
        away += u64::from(info.part(&name, "state") != Some("online"));
    }
    let found = format!(
        "primary of {replicas}, the last {behind} bytes behind and heard of {silent} s ago"
    );
    let cure = "see the logs of the replicas; what they lack is lost when they take over";
    match away > 0 || silent >= LAG_SECS {
        true => Finding::warn(check, format!("{found}, {away} not online"), cure),
        false => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(finding: Finding, begins: &str, says: &str) {
        let line = finding.line();
        assert!(line.starts_with(begins) && line.contains(says), "{line}");
    }

    fn info(text: &str) -> Seen<Info> {
        Ok(Info::of(text))
    }

    #[test]
    fn eviction_matters_where_there_is_a_bound() {
        let tell = |most, used, policy| {
            let text = format!("used_memory:{used}\nmaxmemory:{most}\nmaxmemory_policy:{policy}");
            eviction(&info(&text))
        };
        check(tell(0, 5, "allkeys-lru"), "ok ", "nothing is evicted");
        check(tell(100, 5, "noeviction"), "ok ", "noeviction");
        check(tell(100, 5, "allkeys-lru"), "warn", "forgotten");
        check(tell(100, 5, "volatile-ttl"), "warn", "noeviction");
        check(tell(100, 95, "noeviction"), "warn", "raise maxmemory");
        check(eviction(&info("")), "warn", "does not tell");
    }

    #[test]
    fn what_a_restart_forgets_is_told() {
        let saving = |snapshots: &str, fsync: &str| {
            Ok(Saving {
                snapshots: snapshots.to_owned(),
                fsync: fsync.to_owned(),
            })
        };
        let tell = |text, saving| persistence(&info(text), &saving);
        check(
            tell("aof_enabled:0", saving("", "everysec")),
            "ok ",
            "every count",
        );
        check(
            tell("aof_enabled:1", saving("", "everysec")),
            "ok ",
            "last second",
        );
        check(
            tell("aof_enabled:1", saving("", "always")),
            "ok ",
            "forgets nothing",
        );
        let text = "aof_enabled:0\nrdb_changes_since_last_save:7";
        check(tell(text, saving("60 1", "everysec")), "ok ", "7 changes");
        let text = "aof_enabled:0\nrdb_last_bgsave_status:err";
        check(tell(text, saving("60 1", "everysec")), "warn", "snapshot");
    }

    #[test]
    fn a_server_of_a_cluster_is_not_to_be_written_as_one() {
        let found = misaddressed(&info("role:master\ncluster_enabled:1"));
        check(found.unwrap(), "FAIL", "redis+cluster://HOST:PORT");
        assert_eq!(misaddressed(&info("cluster_enabled:0")), None);
    }

    #[test]
    fn a_replica_cannot_count_and_a_primary_says_who_follows_it() {
        let tell = |text: &str| replication(&info(text), Standing::Alone);
        check(
            tell("role:slave\nmaster_host:h\nmaster_port:1"),
            "FAIL",
            "h:1",
        );
        let bare = "role:master\nconnected_slaves:0";
        check(tell(bare), "ok ", "without a replica");
        let in_cluster = replication(&info(bare), Standing::OfCluster);
        check(in_cluster, "warn", "without a replica");
        let with = |slave: &str| {
            format!("role:master\nconnected_slaves:1\nmaster_repl_offset:90\nslave0:{slave}")
        };
        let good = with("ip=a,port=1,state=online,offset=80,lag=1");
        check(tell(&good), "ok ", "10 bytes behind and heard of 1 s ago");
        check(
            tell(&with("ip=a,state=online,offset=80,lag=60")),
            "warn",
            "60 s ago",
        );
        check(
            tell(&with("ip=a,state=wait_bgsave,offset=0,lag=0")),
            "warn",
            "1 not online",
        );
    }
}
