//! Starts each server with one door open.

use std::path::Path;
use std::{env, fs, io};

use bench_process::Server;

/// By which a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Resp,
    /// HTTP/1.
    Http,
    /// HTTP/2.
    Grpc,
}

/// More connections than any part of a run opens, all of one peer.
const CONNECTIONS: &str = "12000";

/// One limit in a file of the reference service. It admits whatever a run can ask.
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

/// `tidegate serve` on memory, with its file kept in `work`.
pub(crate) fn tidegate(program: &Path, door: Door, work: &Path) -> io::Result<Server> {
    let (name, text) = match door {
        Door::Grpc => ("limits.yaml", LIMITS),
        Door::Resp | Door::Http => ("rules.yaml", RULES),
    };
    let file = work.join(name);
    fs::write(&file, text)?;
    Server::start(&program.to_string_lossy(), |port| {
        let mut words = vec!["serve".to_owned()];
        let doors = [
            ("--resp", Some(Door::Resp)),
            ("--http", Some(Door::Http)),
            ("--grpc", Some(Door::Grpc)),
            ("--admin", None),
        ];
        for (flag, of) in doors {
            let address = match of == Some(door) {
                true => format!("127.0.0.1:{port}"),
                false => "off".to_owned(),
            };
            words.extend([flag.to_owned(), address]);
        }
        words.extend(["--rules".to_owned(), file.display().to_string()]);
        let room = ["--max-connections", "--max-connections-per-peer"];
        words.extend(room.map(|flag| format!("{flag}={CONNECTIONS}")));
        words
    })
}

/// `throttlecrab-server` on its default store.
pub(crate) fn throttlecrab(program: &Path, door: Door) -> io::Result<Server> {
    let name = match door {
        Door::Resp => "redis",
        Door::Http => "http",
        Door::Grpc => "grpc",
    };
    Server::start(&program.to_string_lossy(), |port| {
        [
            format!("--{name}"),
            format!("--{name}-host=127.0.0.1"),
            format!("--{name}-port={port}"),
            "--log-level=error".to_owned(),
        ]
        .into()
    })
}

/// limitador behind gRPC, which is built beside this program.
pub(crate) fn limitador() -> io::Result<Server> {
    let program = env::current_exe()?.with_file_name("bench-limitador");
    Server::start(&program.to_string_lossy(), |port| vec![port.to_string()])
}

/// Redis with the module redis-cell if there is one.
pub(crate) fn redis(module: Option<&Path>) -> io::Result<Server> {
    Server::redis(module, &["--maxclients", CONNECTIONS])
}
