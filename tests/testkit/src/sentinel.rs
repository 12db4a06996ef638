//! A primary, its replicas, and sentinels that watch them.

use std::fs;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::redis_server::{RedisProgram, TestRedis, free_port, redis_cli, wait_until};

/// The name of the primary in the sentinels.
pub const PRIMARY_NAME: &str = "counters";

/// A primary with replicas and sentinels.
pub struct SentinelGroup {
    /// The servers. The first is the primary until a failover.
    pub servers: Vec<TestRedis>,
    sentinels: Vec<TestSentinel>,
}

/// A single sentinel.
pub struct TestSentinel {
    /// Its port on loopback.
    pub port: u16,
    child: Child,
    _folder: TempDir,
}

impl SentinelGroup {
    /// A primary with `replicas`, and three sentinels that consider a primary down after 500 ms.
    pub fn start(replicas: usize) -> SentinelGroup {
        let primary = TestRedis::redis7();
        let of = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            let options = ["--replicaof", "127.0.0.1", &of, "--repl-diskless-sync-delay", "0"];
            servers.push(TestRedis::start(RedisProgram::Redis7, &options));
        }
        for replica in &servers[1..] {
            wait_until("a replica", || replica.run_command(&["ROLE"]), |role| role.contains("connected"));
        }
        let sentinels = (0..3).map(|_| TestSentinel::start(&servers[0])).collect();
        let group = SentinelGroup { servers, sentinels };
        for port in group.ports() {
            let query = || redis_cli(port, &["SENTINEL", "CKQUORUM", PRIMARY_NAME]);
            wait_until("a quorum", query, |reply| reply.starts_with("OK 3"));
            let query = || redis_cli(port, &["SENTINEL", "REPLICAS", PRIMARY_NAME]);
            let known = |reply: &str| reply.matches("runid").count() >= replicas;
            wait_until("the replicas", query, known);
        }
        group
    }

    /// The ports of the sentinels on loopback.
    pub fn ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(|sentinel| sentinel.port).collect()
    }

    /// The address of all sentinels and their primary, as the URL of a store.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports().iter().map(|p| format!("127.0.0.1:{p}")).collect();
        format!("redis+sentinel://{}/{PRIMARY_NAME}", hosts.join(","))
    }

    /// Kills one of the sentinels at once.
    pub fn kill(&mut self, sentinel: usize) {
        let child = &mut self.sentinels[sentinel].child;
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The port of the primary, according to the first responding sentinel.
    pub fn primary(&self) -> u16 {
        let query = |port| redis_cli(port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME]);
        let replies = self.ports().into_iter().map(query);
        let mut ports = replies.filter_map(|reply| reply.lines().nth(1)?.parse().ok());
        ports.next().expect("a sentinel that knows the primary")
    }

    /// Returns when all sentinels name the same primary, none is in a failover, and all other servers follow
    /// that primary. A server that does not gets the command to: the sentinels would send it, too, after ten
    /// seconds.
    pub fn wait_until_stable(&self) {
        let query = || self.first_unstable().unwrap_or_default();
        wait_until("one primary with replicas", query, str::is_empty);
    }

    /// The first condition that is not stable yet.
    fn first_unstable(&self) -> Option<String> {
        let primary = self.primary();
        let watched = |port| redis_cli(port, &["SENTINEL", "MASTER", PRIMARY_NAME]);
        let is_unstable = |reply: &String| !is_stable(reply, primary);
        if let Some(reply) = self.ports().into_iter().map(watched).find(is_unstable) {
            return Some(reply);
        }
        self.servers.iter().find_map(|server| {
            let (role, of) = (server.run_command(&["ROLE"]), primary.to_string());
            let is_primary = server.port() == primary;
            let follows = role.starts_with("slave") && role.contains(&of);
            if !is_primary && !follows {
                server.run_command(&["REPLICAOF", "127.0.0.1", &of]);
            }
            let stable = if is_primary { role.starts_with("master") } else { follows && role.contains("connected") };
            (!stable).then_some(role)
        })
    }

    /// Requests a failover, again if it fails. Returns when another server is the primary.
    pub fn fail_over(&self) {
        let before = self.primary();
        let request = || {
            self.request_failover();
            self.primary().to_string()
        };
        wait_until("a failover", request, |port| port != before.to_string());
        self.wait_for_new_primary(before);
    }

    /// Sends a failover request to the first sentinel and returns its reply.
    pub fn request_failover(&self) -> String {
        redis_cli(self.ports()[0], &["SENTINEL", "FAILOVER", PRIMARY_NAME])
    }

    /// Returns when another server than the one on port `before` is the primary and reports that role itself.
    pub fn wait_for_new_primary(&self, before: u16) {
        let query = || self.primary().to_string();
        wait_until("a new primary", query, |port| port != before.to_string());
        let query = || redis_cli(self.primary(), &["ROLE"]);
        wait_until("its role", query, |role| role.starts_with("master"));
    }
}

/// Whether a sentinel reports its primary as healthy, on this port, and not about to change. A sentinel whose
/// chosen server dies before its failover has ended stays in that failover for good.
fn is_stable(reply: &str, primary: u16) -> bool {
    let lines: Vec<&str> = reply.lines().collect();
    let field = |name| {
        let mut pairs = lines.chunks(2).filter(|pair| pair[0] == name);
        pairs.next().and_then(|pair| pair.get(1).copied())
    };
    field("port") == Some(primary.to_string().as_str()) && field("flags") == Some("master")
}

impl TestSentinel {
    fn start(primary: &TestRedis) -> TestSentinel {
        TestSentinel::with(RedisProgram::Redis7, primary.port(), 2, &[])
    }

    /// A sentinel that watches the primary on a port and needs `quorum` votes; `options` as on a command
    /// line.
    pub fn with(program: RedisProgram, primary: u16, quorum: u8, options: &[String]) -> TestSentinel {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let path = folder.path().join("sentinel.conf");
        let config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {PRIMARY_NAME} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {PRIMARY_NAME} 500\n\
             sentinel failover-timeout {PRIMARY_NAME} 4000\n"
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
        let sentinel = TestSentinel { port, child, _folder: folder };
        wait_until("a sentinel", || redis_cli(port, &["PING"]), |reply| reply == "PONG");
        sentinel
    }

    /// The reply to one command, as `redis-cli` prints it.
    pub fn run_command(&self, command: &[&str]) -> String {
        redis_cli(self.port, command)
    }
}

impl Drop for TestSentinel {
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
        let mut sentinels = SentinelGroup::start(1);
        let before = sentinels.primary();
        assert_eq!(before, sentinels.servers[0].port());
        sentinels.servers[0].kill();
        sentinels.wait_for_new_primary(before);
        assert_eq!(sentinels.primary(), sentinels.servers[1].port());
    }
}
