//! Starts each server with one listener.

use std::path::Path;
use std::{env, fs, io};

use bench_process::ServerProcess;

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchProtocol {
    Resp,
    /// HTTP/1.
    Http,
    /// HTTP/2.
    Grpc,
}

/// More connections than any part of a run opens, all from one peer.
const CONNECTIONS: &str = "12000";

/// One limit in a file of the reference service. It admits every request of a run.
const LIMITS: &str = "\
domain: bench
descriptors:
  - key: api_key
    rate_limit:
      unit: hour
      requests_per_unit: 100000000
";

/// The same in a rules file of ours, for HTTP.
const RULES: &str = "\
version: 1
rules:
  - name: search
    by: api_key
    rate: 60/minute burst 100000000
";

/// `tidegate serve` on memory, with its file in `work`.
pub(crate) fn tidegate(program: &Path, protocol: BenchProtocol, work: &Path) -> io::Result<ServerProcess> {
    let (name, text) = match protocol {
        BenchProtocol::Grpc => ("limits.yaml", LIMITS),
        BenchProtocol::Resp | BenchProtocol::Http => ("rules.yaml", RULES),
    };
    let file = work.join(name);
    fs::write(&file, text)?;
    ServerProcess::start(&program.to_string_lossy(), |port| {
        let mut words = vec!["serve".to_owned()];
        let listeners = [
            ("--resp", Some(BenchProtocol::Resp)),
            ("--http", Some(BenchProtocol::Http)),
            ("--grpc", Some(BenchProtocol::Grpc)),
            ("--admin", None),
        ];
        for (flag, of) in listeners {
            let address = if of == Some(protocol) { format!("127.0.0.1:{port}") } else { "off".to_owned() };
            words.extend([flag.to_owned(), address]);
        }
        words.extend(["--rules".to_owned(), file.display().to_string()]);
        let room = ["--max-connections", "--max-connections-per-peer"];
        words.extend(room.map(|flag| format!("{flag}={CONNECTIONS}")));
        words
    })
}

/// `throttlecrab-server` on its default store.
pub(crate) fn throttlecrab(program: &Path, protocol: BenchProtocol) -> io::Result<ServerProcess> {
    let name = match protocol {
        BenchProtocol::Resp => "redis",
        BenchProtocol::Http => "http",
        BenchProtocol::Grpc => "grpc",
    };
    ServerProcess::start(&program.to_string_lossy(), |port| {
        [
            format!("--{name}"),
            format!("--{name}-host=127.0.0.1"),
            format!("--{name}-port={port}"),
            "--log-level=error".to_owned(),
        ]
        .into()
    })
}

/// limitador behind gRPC. It is built together with this program.
pub(crate) fn limitador() -> io::Result<ServerProcess> {
    let program = env::current_exe()?.with_file_name("bench-limitador");
    ServerProcess::start(&program.to_string_lossy(), |port| vec![port.to_string()])
}

/// Redis with the module redis-cell if there is one.
pub(crate) fn redis(module: Option<&Path>) -> io::Result<ServerProcess> {
    ServerProcess::redis(module, &["--maxclients", CONNECTIONS])
}
