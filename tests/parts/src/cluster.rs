//! A cluster of three primaries with a replica each.

use std::process::Command;

use crate::servers::{Program, Server, until};

/// Slots of any cluster.
const SLOTS: u32 = 16_384;

/// A running cluster.
pub struct Cluster {
    /// Three primaries, then three replicas, until a failover.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// Starts six servers and joins them; returns when every one finds the cluster whole.
    pub fn start() -> Cluster {
        let options = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let servers: Vec<_> = (0..6)
            .map(|_| Server::start(Program::Redis7, &options))
            .collect();
        let nodes = servers.iter().map(|server| server.address().to_string());
        let joined = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(nodes)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/tools"));
        let said = String::from_utf8_lossy(&joined.stdout);
        assert!(joined.status.success(), "{said}");
        let cluster = Cluster { servers };
        cluster.wait();
        cluster
    }

    fn wait(&self) {
        let whole = format!("cluster_slots_ok:{SLOTS}");
        for server in &self.servers {
            let ask = || server.ask(&["CLUSTER", "INFO"]);
            until("the cluster", ask, |info| {
                info.contains("cluster_state:ok") && info.contains(&whole)
            });
            let ask = || server.ask(&["CLUSTER", "NODES"]);
            until("the roles", ask, |nodes| primaries(nodes).len() == 3);
            // A replica that has never been in step takes nothing over.
            until(
                "the replicas",
                || server.ask(&["ROLE"]),
                |role| role.starts_with("master") || role.contains("connected"),
            );
        }
    }

    /// The primaries, as the first server that answers sees them: node id and port.
    pub fn primaries(&self) -> Vec<(String, u16)> {
        let mut seen = self
            .servers
            .iter()
            .map(|server| server.ask(&["CLUSTER", "NODES"]));
        let nodes = seen.find(|nodes| nodes.contains("myself"));
        primaries(&nodes.expect("a server that answers"))
    }

    /// Moves `slots` from the first primary to the second while the cluster serves; ends when all have
    /// moved.
    pub fn move_slots(&self, slots: u32) {
        let primaries = self.primaries();
        let [(from, _), (to, _), ..] = primaries.as_slice() else {
            panic!("not two primaries: {primaries:?}");
        };
        let moved = Command::new("redis-cli")
            .args([
                "--cluster",
                "reshard",
                &self.servers[0].address().to_string(),
            ])
            .args(["--cluster-from", from, "--cluster-to", to])
            .args(["--cluster-slots", &slots.to_string(), "--cluster-yes"])
            .args(["--cluster-pipeline", "100"])
            .output()
            .unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/tools"));
        let said = String::from_utf8_lossy(&moved.stdout);
        assert!(moved.status.success(), "{said}");
        self.wait();
    }
}

/// The primaries among the lines of `CLUSTER NODES`, by their first slots.
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
    fn slots_move_while_the_cluster_serves() {
        let cluster = Cluster::start();
        let primaries = cluster.primaries();
        assert_eq!(primaries.len(), 3);
        let asked = cluster
            .servers
            .iter()
            .find(|server| server.port() == primaries[0].1);
        let asked = asked.unwrap();
        assert_eq!(asked.ask(&["CLUSTER", "KEYSLOT", "06S"]), "0");
        assert_eq!(asked.ask(&["GET", "06S"]), "");
        cluster.move_slots(16);
        let moved = format!("MOVED 0 127.0.0.1:{}", primaries[1].1);
        assert_eq!(asked.ask(&["GET", "06S"]), moved);
    }
}
