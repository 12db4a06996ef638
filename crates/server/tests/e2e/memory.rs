//! The memory of a process, as the system counts it.

use crate::server::TestServer;

/// Current resident memory in bytes.
pub(crate) fn rss(server: &TestServer) -> u64 {
    figure(server, "VmRSS:")
}

/// Peak resident memory in bytes.
pub(crate) fn peak_rss(server: &TestServer) -> u64 {
    figure(server, "VmHWM:")
}

fn figure(server: &TestServer, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}
