//! The servers and how each is asked the same question.

use std::path::Path;
use std::{env, fs, io};

use bench_process::ServerProcess;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpRequestKind {
    /// One check that is admitted.
    Admitted,
    /// One check that is refused.
    Denied,
    /// A hundred checks in one request.
    Batch,
}

/// Checks in one request of [`HttpRequestKind::Batch`].
pub(crate) const BATCH: usize = 100;

/// Clients that take turns.
const CLIENTS: usize = 1_000;

/// How requests to a server are written.
#[derive(Debug, Clone, Copy)]
enum RequestFormat {
    Check,
    Throttlecrab,
}

/// A running server and its dialect.
pub(crate) struct HttpTarget {
    pub(crate) name: &'static str,
    pub(crate) server: ServerProcess,
    format: RequestFormat,
}

pub(crate) const BARE: &str = "bare hyper";
pub(crate) const TIDEGATE: &str = "tidegate";
pub(crate) const THROTTLECRAB: &str = "throttlecrab-server";

impl HttpTarget {
    /// The handler that decides nothing, which is built beside this program.
    pub(crate) fn bare() -> io::Result<Self> {
        let program = env::current_exe()?.with_file_name("bench-bare");
        let server =
            ServerProcess::start(&program.to_string_lossy(), |port| vec![port.to_string()])?;
        Ok(HttpTarget {
            name: BARE,
            server,
            format: RequestFormat::Check,
        })
    }

    /// `tidegate serve` on memory, with the rules file kept in `work`.
    pub(crate) fn tidegate(program: &Path, work: &Path) -> io::Result<Self> {
        let rules = work.join("http-rules.yaml");
        fs::write(&rules, RULES)?;
        let server = ServerProcess::start(&program.to_string_lossy(), |port| {
            let http = format!("127.0.0.1:{port}");
            let rules = rules.to_string_lossy();
            [
                "serve", "--rules", &rules, "--http", &http, "--grpc", "off", "--admin", "off",
            ]
            .map(str::to_owned)
            .into()
        })?;
        Ok(HttpTarget {
            name: TIDEGATE,
            server,
            format: RequestFormat::Check,
        })
    }

    /// `throttlecrab-server` over HTTP on its default store.
    pub(crate) fn throttlecrab(program: &Path) -> io::Result<Self> {
        let server = ServerProcess::start(&program.to_string_lossy(), |port| {
            let port = port.to_string();
            let quiet = ["--log-level", "error"];
            let http = ["--http", "--http-host", "127.0.0.1", "--http-port", &port];
            http.iter()
                .chain(&quiet)
                .map(|word| (*word).to_owned())
                .collect()
        })?;
        Ok(HttpTarget {
            name: THROTTLECRAB,
            server,
            format: RequestFormat::Throttlecrab,
        })
    }

    /// Whole requests that ask the question, one for each client; `None` when it cannot be asked.
    pub(crate) fn requests(&self, question: HttpRequestKind) -> Option<Vec<Vec<u8>>> {
        let one = |client| match self.format {
            RequestFormat::Check => check_body(question, client),
            RequestFormat::Throttlecrab => throttlecrab_body(question, client),
        };
        let (path, bodies): (_, Vec<String>) = match (self.format, question) {
            (RequestFormat::Throttlecrab, HttpRequestKind::Batch) => return None,
            (RequestFormat::Throttlecrab, _) => ("/throttle", (0..CLIENTS).map(one).collect()),
            (RequestFormat::Check, HttpRequestKind::Batch) => {
                let batches = (0..CLIENTS).step_by(BATCH);
                let list = |first| {
                    (first..first + BATCH)
                        .map(one)
                        .collect::<Vec<_>>()
                        .join(",")
                };
                (
                    "/v1/check",
                    batches.map(|first| format!("[{}]", list(first))).collect(),
                )
            }
            (RequestFormat::Check, _) => ("/v1/check", (0..CLIENTS).map(one).collect()),
        };
        Some(bodies.iter().map(|body| request(path, body)).collect())
    }
}

/// Two rules: one that admits whatever a run can ask, and one that refuses nearly everything.
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

fn check_body(question: HttpRequestKind, client: usize) -> String {
    let path = if question == HttpRequestKind::Denied {
        "/api/v1/login"
    } else {
        "/api/v1/search"
    };
    format!(
        "{{\"attributes\":{{\"ip\":\"203.0.113.9\",\"api_key\":\"k{client}\",\"path\":\"{path}\",\
         \"method\":\"GET\"}},\"cost\":1}}"
    )
}

/// A limit comes with each request; a burst of 1 would never refuse.
fn throttlecrab_body(question: HttpRequestKind, client: usize) -> String {
    let (burst, count, period) = if question == HttpRequestKind::Denied {
        (2, 2, 3_600)
    } else {
        (100_000_000, 60, 60)
    };
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
