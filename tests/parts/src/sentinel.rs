//! A primary, its replicas, and sentinels that watch them.

use std::fs;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::servers::{Program, Server, free_port, redis_cli, until};

/// The name under which the sentinels know the primary.
pub const WATCHED: &str = "counters";

/// A watched primary.
pub struct Sentinels {
    /// The servers; the first is the primary until a failover.
    pub servers: Vec<Server>,
    watchers: Vec<Sentinel>,
}

/// A single sentinel.
pub struct Sentinel {
    /// Where it listens, on loopback.
    pub port: u16,
    child: Child,
    _folder: TempDir,
}

impl Sentinels {
    /// A primary with `replicas`, and three sentinels that find a primary dead after 500 ms.
    pub fn start(replicas: usize) -> Sentinels {
        let primary = Server::redis7();
        let of = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            let options = [
                "--replicaof",
                "127.0.0.1",
                &of,
                "--repl-diskless-sync-delay",
                "0",
            ];
            servers.push(Server::start(Program::Redis7, &options));
        }
        for replica in &servers[1..] {
            until(
                "a replica",
                || replica.ask(&["ROLE"]),
                |role| role.contains("connected"),
            );
        }
        let watchers = (0..3).map(|_| Sentinel::start(&servers[0])).collect();
        let sentinels = Sentinels { servers, watchers };
        for port in sentinels.ports() {
            let ask = || redis_cli(port, &["SENTINEL", "CKQUORUM", WATCHED]);
            until("a quorum", ask, |answer| answer.starts_with("OK 3"));
            let ask = || redis_cli(port, &["SENTINEL", "REPLICAS", WATCHED]);
            let known = |answer: &str| answer.matches("runid").count() >= replicas;
            until("the replicas", ask, known);
        }
        sentinels
    }

    /// Where the sentinels listen, on loopback.
    pub fn ports(&self) -> Vec<u16> {
        self.watchers.iter().map(|watcher| watcher.port).collect()
    }

    /// Where all of them and their primary are, as a store's address.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .ports()
            .iter()
            .map(|p| format!("127.0.0.1:{p}"))
            .collect();
        format!("redis+sentinel://{}/{WATCHED}", hosts.join(","))
    }

    /// Ends one of the sentinels at once.
    pub fn kill(&mut self, sentinel: usize) {
        let child = &mut self.watchers[sentinel].child;
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The port of the primary, as the first sentinel that answers knows it.
    pub fn primary(&self) -> u16 {
        let ask = |port| redis_cli(port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", WATCHED]);
        let answers = self.ports().into_iter().map(ask);
        let mut ports = answers.filter_map(|answer| answer.lines().nth(1)?.parse().ok());
        ports.next().expect("a sentinel that knows the primary")
    }

    /// Returns when all sentinels name the same primary, none is still busy with a failover, and all other
    /// servers follow it. Who does not is told to: the sentinels would do so too, after ten seconds.
    pub fn settle(&self) {
        let ask = || self.unsettled().unwrap_or_default();
        until("one primary with replicas", ask, str::is_empty);
    }

    /// What is not as it will be.
    fn unsettled(&self) -> Option<String> {
        let primary = self.primary();
        let watched = |port| redis_cli(port, &["SENTINEL", "MASTER", WATCHED]);
        let doubts = |said: &String| !calm(said, primary);
        if let Some(said) = self.ports().into_iter().map(watched).find(doubts) {
            return Some(said);
        }
        self.servers.iter().find_map(|server| {
            let (role, of) = (server.ask(&["ROLE"]), primary.to_string());
            let is_primary = server.port() == primary;
            let follows = role.starts_with("slave") && role.contains(&of);
            if !is_primary && !follows {
                server.ask(&["REPLICAOF", "127.0.0.1", &of]);
            }
            let settled = match is_primary {
                true => role.starts_with("master"),
                false => follows && role.contains("connected"),
            };
            (!settled).then_some(role)
        })
    }

    /// Orders a failover, again if it comes to nothing; returns when another server is the primary.
    pub fn fail_over(&self) {
        let before = self.primary();
        let order = || {
            self.order();
            self.primary().to_string()
        };
        until("a failover", order, |port| port != before.to_string());
        self.moved_from(before);
    }

    /// Tells the first sentinel to make another server the primary; what it says to that.
    pub fn order(&self) -> String {
        redis_cli(self.ports()[0], &["SENTINEL", "FAILOVER", WATCHED])
    }

    /// Returns when another server than that on port `before` is the primary and says so itself.
    pub fn moved_from(&self, before: u16) {
        let ask = || self.primary().to_string();
        until("a new primary", ask, |port| port != before.to_string());
        let ask = || redis_cli(self.primary(), &["ROLE"]);
        until("its role", ask, |role| role.starts_with("master"));
    }
}

/// Whether what a sentinel says of its primary is that it is well, on this port, and not about to change.
/// A sentinel whose chosen server dies before its failover has ended stays in it for good.
fn calm(said: &str, primary: u16) -> bool {
    let lines: Vec<&str> = said.lines().collect();
    let field = |name| {
        let mut pairs = lines.chunks(2).filter(|pair| pair[0] == name);
        pairs.next().and_then(|pair| pair.get(1).copied())
    };
    field("port") == Some(primary.to_string().as_str()) && field("flags") == Some("master")
}

impl Sentinel {
    fn start(primary: &Server) -> Sentinel {
        Sentinel::with(Program::Redis7, primary.port(), 2, &[])
    }

    /// One that watches the primary on a port and needs `quorum` to vote; `options` as on a command line.
    pub fn with(program: Program, primary: u16, quorum: u8, options: &[String]) -> Sentinel {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let path = folder.path().join("sentinel.conf");
        let config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {WATCHED} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {WATCHED} 500\n\
             sentinel failover-timeout {WATCHED} 4000\n"
        );
        fs::write(&path, config).expect("a configuration");
        let child = Command::new(program.path())
            .arg(path)
            .arg("--sentinel")
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("no {program:?} ({error}): run scripts/tools"));
        let sentinel = Sentinel {
            port,
            child,
            _folder: folder,
        };
        until(
            "a sentinel",
            || redis_cli(port, &["PING"]),
            |answer| answer == "PONG",
        );
        sentinel
    }

    /// What it answers to one command, as `redis-cli` prints it.
    pub fn ask(&self, command: &[&str]) -> String {
        redis_cli(self.port, command)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_primary_is_replaced() {
        let mut sentinels = Sentinels::start(1);
        let before = sentinels.primary();
        assert_eq!(before, sentinels.servers[0].port());
        sentinels.servers[0].kill();
        sentinels.moved_from(before);
        assert_eq!(sentinels.primary(), sentinels.servers[1].port());
    }
}
