//! The subjects, and the same decision in the request format of each.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use bench_process::ServerProcess;
use bench_subjects::Allowance;

use crate::grpc::GrpcCalls;
use crate::idle::SingleRequest;
use crate::load::ServerLoadKind;
use crate::message;
use crate::program::{self, BenchProtocol};
use crate::resp::{AdmittedReply, RespCommands};

pub(crate) const TIDEGATE: &str = "tidegate";
pub(crate) const REDIS: &str = "Redis";
pub(crate) const INCR: &str = "Redis INCR";
pub(crate) const CELL: &str = "redis-cell";
pub(crate) const THROTTLECRAB: &str = "throttlecrab-server";
pub(crate) const LIMITADOR: &str = "limitador in tonic";

/// The rows of the tables of a protocol, whether or not the subject was in the run.
pub(crate) const RESP_NAMES: [&str; 4] = [TIDEGATE, INCR, CELL, THROTTLECRAB];
pub(crate) const GRPC_NAMES: [&str; 3] = [TIDEGATE, THROTTLECRAB, LIMITADOR];

/// The domain and the key of the descriptor in the file of limits.
const DOMAIN: &str = "bench";
const DESCRIPTOR: &str = "api_key";

/// The binaries of this run; a subject without one is absent.
pub(crate) struct ServerPrograms {
    pub(crate) tidegate: Option<PathBuf>,
    pub(crate) throttlecrab: Option<PathBuf>,
    pub(crate) redis_cell: Option<PathBuf>,
    /// A folder for the files of the servers.
    pub(crate) work: PathBuf,
}

/// A running server and its load.
pub(crate) struct ServerSubject {
    pub(crate) name: &'static str,
    pub(crate) server: Rc<ServerProcess>,
    pub(crate) load: ServerLoadKind,
}

impl ServerSubject {
    fn new(name: &'static str, server: ServerProcess, load: ServerLoadKind) -> Self {
        ServerSubject { name, server: Rc::new(server), load }
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

/// The subjects that speak the Redis protocol. Redis and its module are one server.
pub(crate) fn resp(programs: &ServerPrograms) -> io::Result<Vec<ServerSubject>> {
    let mut subjects = Vec::new();
    if let Some(program) = &programs.tidegate {
        let server = program::tidegate(program, BenchProtocol::Resp, &programs.work)?;
        subjects.push(ServerSubject::new(TIDEGATE, server, cl_throttle()));
    }
    let redis = Rc::new(program::redis(programs.redis_cell.as_deref())?);
    subjects.push(ServerSubject { name: INCR, server: Rc::clone(&redis), load: incr() });
    if programs.redis_cell.is_some() {
        subjects.push(ServerSubject { name: CELL, server: redis, load: cl_throttle() });
    }
    if let Some(program) = &programs.throttlecrab {
        let server = program::throttlecrab(program, BenchProtocol::Resp)?;
        subjects.push(ServerSubject::new(THROTTLECRAB, server, throttle()));
    }
    Ok(subjects)
}

/// The subjects that speak gRPC.
pub(crate) fn grpc(programs: &ServerPrograms) -> io::Result<Vec<ServerSubject>> {
    let mut subjects = Vec::new();
    if let Some(program) = &programs.tidegate {
        let server = program::tidegate(program, BenchProtocol::Grpc, &programs.work)?;
        subjects.push(ServerSubject::new(TIDEGATE, server, should_rate_limit()));
    }
    if let Some(program) = &programs.throttlecrab {
        let server = program::throttlecrab(program, BenchProtocol::Grpc)?;
        subjects.push(ServerSubject::new(THROTTLECRAB, server, throttle_call()));
    }
    let limitador = program::limitador()?;
    subjects.push(ServerSubject::new(LIMITADOR, limitador, should_rate_limit()));
    Ok(subjects)
}

/// The single request of an idle connection to Tidegate.
pub(crate) fn single_request(protocol: BenchProtocol) -> SingleRequest {
    match protocol {
        BenchProtocol::Resp => SingleRequest::Of(cl_throttle()),
        BenchProtocol::Http => http("/v1/check", "{\"attributes\":{\"api_key\":\"k1\"},\"cost\":1}"),
        BenchProtocol::Grpc => SingleRequest::Of(should_rate_limit()),
    }
}

/// The same for throttlecrab-server.
pub(crate) fn single_request_of_throttlecrab(protocol: BenchProtocol) -> SingleRequest {
    let body = "{\"key\":\"k1\",\"max_burst\":100000000,\"count_per_period\":60,\"period\":60}";
    match protocol {
        BenchProtocol::Resp => SingleRequest::Of(throttle()),
        BenchProtocol::Http => http("/throttle", body),
        BenchProtocol::Grpc => SingleRequest::Of(throttle_call()),
    }
}

fn http(path: &str, body: &str) -> SingleRequest {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    SingleRequest::Http(request.into_bytes())
}

pub(crate) fn incr() -> ServerLoadKind {
    let words = |key: &str| ["INCR", key].map(str::to_owned);
    ServerLoadKind::Resp(RespCommands::new(AdmittedReply::Counted, words))
}

/// As redis-cell defines it: the burst is in addition to the first request, and 0 admits.
fn cl_throttle() -> ServerLoadKind {
    let burst = Allowance::ADMITS_ALL.burst.get() - 1;
    let words = |key: &str| throttle_words("CL.THROTTLE", key, burst);
    ServerLoadKind::Resp(RespCommands::new(AdmittedReply::FirstIs(b'0'), words))
}

/// As throttlecrab defines it: 1 admits.
fn throttle() -> ServerLoadKind {
    let burst = Allowance::ADMITS_ALL.burst.get();
    let words = |key: &str| throttle_words("THROTTLE", key, burst);
    ServerLoadKind::Resp(RespCommands::new(AdmittedReply::FirstIs(b'1'), words))
}

fn throttle_words(command: &str, key: &str, burst: u32) -> [String; 6] {
    let Allowance { count, period_secs, .. } = Allowance::ADMITS_ALL;
    [command.to_owned(), key.to_owned(), burst.to_string(), count.to_string(), period_secs.to_string(), "1".to_owned()]
}

/// One descriptor of one entry, limited by a file of the reference service.
fn should_rate_limit() -> ServerLoadKind {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let message = |key: &str| message::rate_limit_request(DOMAIN, DESCRIPTOR, key);
    ServerLoadKind::Grpc(GrpcCalls::new(path, message))
}

fn throttle_call() -> ServerLoadKind {
    let Allowance { count, period_secs, burst } = Allowance::ADMITS_ALL;
    let message = |key: &str| message::throttle_request(key, burst.get(), count.get(), period_secs);
    ServerLoadKind::Grpc(GrpcCalls::new("/throttlecrab.RateLimiter/Throttle", message))
}
