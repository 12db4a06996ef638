//! A cluster of three primaries with a replica each.

use std::process::Command;

use crate::redis_server::{RedisProgram, TestRedis, wait_until};

/// The number of hash slots of a cluster.
const HASH_SLOTS: u32 = 16_384;

/// A running cluster.
pub struct TestCluster {
    /// Three primaries, then three replicas, until a failover.
    pub servers: Vec<TestRedis>,
}

impl TestCluster {
    /// Starts six servers and joins them. Returns when every one reports the cluster as complete.
    pub fn start() -> TestCluster {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"];
        let servers: Vec<_> = (0..6).map(|_| TestRedis::start(RedisProgram::Redis7, &options)).collect();
        let nodes = servers.iter().map(|server| server.address().to_string());
        let joined = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(nodes)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/tools"));
        let output = String::from_utf8_lossy(&joined.stdout);
        assert!(joined.status.success(), "{output}");
        let cluster = TestCluster { servers };
        cluster.wait();
        cluster
    }

    fn wait(&self) {
        let whole = format!("cluster_slots_ok:{HASH_SLOTS}");
        for server in &self.servers {
            let query = || server.run_command(&["CLUSTER", "INFO"]);
            wait_until("the cluster", query, |info| info.contains("cluster_state:ok") && info.contains(&whole));
            let query = || server.run_command(&["CLUSTER", "NODES"]);
            wait_until("the roles", query, |nodes| primaries(nodes).len() == 3);
            // A replica that was never in sync is not promoted.
            wait_until(
                "the replicas",
                || server.run_command(&["ROLE"]),
                |role| role.starts_with("master") || role.contains("connected"),
            );
        }
    }

    /// The primaries, as the first responding server sees them: node id and port.
    pub fn primaries(&self) -> Vec<(String, u16)> {
        let mut seen = self.servers.iter().map(|server| server.run_command(&["CLUSTER", "NODES"]));
        let nodes = seen.find(|nodes| nodes.contains("myself"));
        primaries(&nodes.expect("a server that responds"))
    }

    /// Moves `count` hash slots from the first primary to the second while the cluster serves. Returns when
    /// all have moved.
    pub fn move_hash_slots(&self, count: u32) {
        let primaries = self.primaries();
        let [(from, _), (to, _), ..] = primaries.as_slice() else {
            panic!("not two primaries: {primaries:?}");
        };
        let moved = Command::new("redis-cli")
            .args(["--cluster", "reshard", &self.servers[0].address().to_string()])
            .args(["--cluster-from", from, "--cluster-to", to])
            .args(["--cluster-slots", &count.to_string(), "--cluster-yes"])
            .args(["--cluster-pipeline", "100"])
            .output()
            .unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/tools"));
        let output = String::from_utf8_lossy(&moved.stdout);
        assert!(moved.status.success(), "{output}");
        self.wait();
    }
}

/// The primaries among the lines of `CLUSTER NODES`, by their first hash slots.
fn primaries(nodes: &str) -> Vec<(String, u16)> {
    let parsed = nodes.lines().filter_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let [id, address, flags, _, _, _, _, _, slots, ..] = words.as_slice() else {
            return None;
        };
        let first: u32 = slots.split('-').next()?.parse().ok()?;
        let port = address.split('@').next()?.rsplit(':').next()?;
        let failed = flags.split(',').any(|flag| flag.starts_with("fail"));
        let serves = flags.contains("master") && !failed;
        serves.then_some((first, id.to_string(), port.parse().ok()?))
    });
    let mut found: Vec<_> = parsed.collect();
    found.sort();
    found.into_iter().map(|(_, id, port)| (id, port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_slots_move_while_the_cluster_serves() {
        let cluster = TestCluster::start();
        let primaries = cluster.primaries();
        assert_eq!(primaries.len(), 3);
        let source_primary = cluster.servers.iter().find(|server| server.port() == primaries[0].1);
        let source_primary = source_primary.unwrap();
        assert_eq!(source_primary.run_command(&["CLUSTER", "KEYSLOT", "06S"]), "0");
        assert_eq!(source_primary.run_command(&["GET", "06S"]), "");
        cluster.move_hash_slots(16);
        let moved = format!("MOVED 0 127.0.0.1:{}", primaries[1].1);
        assert_eq!(source_primary.run_command(&["GET", "06S"]), moved);
    }
}
