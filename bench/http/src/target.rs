//! The servers, and the same request in the format of each.

use std::path::Path;
use std::{env, fs, io};

use bench_process::ServerProcess;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpRequestKind {
    /// One check that is admitted.
    Admitted,
    /// One check that is denied.
    Denied,
    /// A hundred checks in one request.
    Batch,
}

/// Checks in one request of [`HttpRequestKind::Batch`].
pub(crate) const BATCH: usize = 100;

/// Clients that take turns.
const CLIENTS: usize = 1_000;

/// The request format of a server.
#[derive(Debug, Clone, Copy)]
enum RequestFormat {
    Check,
    Throttlecrab,
}

/// A running server and its request format.
pub(crate) struct HttpTarget {
    pub(crate) name: &'static str,
    pub(crate) server: ServerProcess,
    format: RequestFormat,
}

pub(crate) const BARE: &str = "bare hyper";
pub(crate) const TIDEGATE: &str = "tidegate";
pub(crate) const THROTTLECRAB: &str = "throttlecrab-server";

impl HttpTarget {
    /// The handler that decides nothing. It is built together with this program.
    pub(crate) fn bare() -> io::Result<Self> {
        let program = env::current_exe()?.with_file_name("bench-bare");
        let server = ServerProcess::start(&program.to_string_lossy(), |port| vec![port.to_string()])?;
        Ok(HttpTarget { name: BARE, server, format: RequestFormat::Check })
    }

    /// `tidegate serve` on memory, with its rules file in `work`.
    pub(crate) fn tidegate(program: &Path, work: &Path) -> io::Result<Self> {
        let rules = work.join("http-rules.yaml");
        fs::write(&rules, RULES)?;
        let server = ServerProcess::start(&program.to_string_lossy(), |port| {
            let http = format!("127.0.0.1:{port}");
            let rules = rules.to_string_lossy();
            ["serve", "--rules", &rules, "--http", &http, "--grpc", "off", "--admin", "off"].map(str::to_owned).into()
        })?;
        Ok(HttpTarget { name: TIDEGATE, server, format: RequestFormat::Check })
    }

    /// `throttlecrab-server` over HTTP on its default store.
    pub(crate) fn throttlecrab(program: &Path) -> io::Result<Self> {
        let server = ServerProcess::start(&program.to_string_lossy(), |port| {
            let port = port.to_string();
            let quiet = ["--log-level", "error"];
            let http = ["--http", "--http-host", "127.0.0.1", "--http-port", &port];
            http.iter().chain(&quiet).map(|word| (*word).to_owned()).collect()
        })?;
        Ok(HttpTarget { name: THROTTLECRAB, server, format: RequestFormat::Throttlecrab })
    }

    /// Complete requests of a kind, one for each client; `None` when the server does not support it.
    pub(crate) fn requests(&self, kind: HttpRequestKind) -> Option<Vec<Vec<u8>>> {
        let one = |client| match self.format {
            RequestFormat::Check => check_body(kind, client),
            RequestFormat::Throttlecrab => throttlecrab_body(kind, client),
        };
        let (path, bodies): (_, Vec<String>) = match (self.format, kind) {
            (RequestFormat::Throttlecrab, HttpRequestKind::Batch) => return None,
            (RequestFormat::Throttlecrab, _) => ("/throttle", (0..CLIENTS).map(one).collect()),
            (RequestFormat::Check, HttpRequestKind::Batch) => {
                let batches = (0..CLIENTS).step_by(BATCH);
                let list = |first| (first..first + BATCH).map(one).collect::<Vec<_>>().join(",");
                ("/v1/check", batches.map(|first| format!("[{}]", list(first))).collect())
            }
            (RequestFormat::Check, _) => ("/v1/check", (0..CLIENTS).map(one).collect()),
        };
        Some(bodies.iter().map(|body| request(path, body)).collect())
    }
}

/// Two rules: one admits every request of a run, the other denies nearly everything.
const RULES: &str = "\
version: 1
rules:
  - name: search
    match: { path: /api/v1/search }
    by: api_key
    rate: 60/minute burst 100000000
  - name: login
    match: { path: /api/v1/login }
    by: api_key
    rate: 2/hour burst 2
";

fn check_body(kind: HttpRequestKind, client: usize) -> String {
    let path = if kind == HttpRequestKind::Denied { "/api/v1/login" } else { "/api/v1/search" };
    format!(
        "{{\"attributes\":{{\"ip\":\"203.0.113.9\",\"api_key\":\"k{client}\",\"path\":\"{path}\",\
         \"method\":\"GET\"}},\"cost\":1}}"
    )
}

/// Each request carries its limit; a burst of 1 would never deny.
fn throttlecrab_body(kind: HttpRequestKind, client: usize) -> String {
    let (burst, count, period) = if kind == HttpRequestKind::Denied { (2, 2, 3_600) } else { (100_000_000, 60, 60) };
    format!(
        "{{\"key\":\"k{client}\",\"max_burst\":{burst},\"count_per_period\":{count},\
         \"period\":{period},\"quantity\":1}}"
    )
}

fn request(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
