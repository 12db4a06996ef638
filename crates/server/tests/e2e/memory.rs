//! What a process holds, as the system counts it.

use crate::server::Server;

/// Memory held now, in bytes.
pub(crate) fn held(server: &Server) -> u64 {
    figure(server, "VmRSS:")
}

/// The most memory ever held, in bytes.
pub(crate) fn most_held(server: &Server) -> u64 {
    figure(server, "VmHWM:")
}

fn figure(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}
