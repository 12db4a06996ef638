//! Measures the cost of a decision for a Redis server: instructions of the whole server per call, compared with a
//! textbook token bucket (HMGET, TIME, HSET, PEXPIRE), and bytes per subject.
//!
//!     cargo bench -p tidegate --features internals,redis --bench redis_figures -- instructions
//!     cargo bench -p tidegate --features internals,redis --bench redis_figures -- bytes
//!
//! Callgrind counts the instructions, because times on a shared machine vary by more than the measured difference.
//! Needs redis-server and valgrind.

#![allow(clippy::print_stdout)]

use std::borrow::Cow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Role, RuleOptions, Store};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

const TEXTBOOK: &str = "
local capacity = tonumber(ARGV[1])
local rate = tonumber(ARGV[2])
local cost = tonumber(ARGV[3])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local tokens, ts = tonumber(bucket[1]), tonumber(bucket[2])
if tokens == nil then
  tokens, ts = capacity, now
end
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)
local allowed = 0
if tokens >= cost then
  tokens = tokens - cost
  allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate))
return { allowed, tokens }
";

const SUBJECTS: u128 = 50;
const CALLS: u128 = 2_000;
const BATCH: usize = 50;
const PORT: u16 = 17_379;

/// A Redis server of this process, killed when dropped.
struct CallgrindServer {
    child: Child,
    folder: tempfile::TempDir,
}

impl CallgrindServer {
    fn start(under_callgrind: bool) -> CallgrindServer {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = if under_callgrind {
            let mut command = Command::new("valgrind");
            command.args(["--tool=callgrind", "--callgrind-out-file=counts", "redis-server"]);
            command
        } else {
            Command::new("redis-server")
        };
        command
            .args(["--port", &PORT.to_string(), "--save", "", "--hz", "1"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("redis-server and valgrind; scripts/tools installs the first");
        CallgrindServer { child, folder }
    }

    fn control(&self, what: &str) {
        let pid = self.child.id().to_string();
        let mut control = Command::new("callgrind_control");
        control.args([what, &pid]).stdout(Stdio::null()).stderr(Stdio::null());
        control.status().expect("callgrind_control");
    }

    /// Instructions since the counts were set to zero.
    fn instructions(&self) -> u64 {
        self.control("-d");
        std::thread::sleep(Duration::from_millis(500));
        let dumps = std::fs::read_dir(self.folder.path()).expect("a folder");
        let newest =
            dumps.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(|path| number_of(path)).expect("a dump");
        let text = std::fs::read_to_string(newest).expect("a dump");
        let total = text.lines().find_map(|line| {
            let totals = line.strip_prefix("totals: ").or(line.strip_prefix("summary: "))?;
            totals.trim().parse().ok()
        });
        total.expect("a total")
    }
}

fn number_of(path: &Path) -> u32 {
    let number = path.extension().and_then(|number| number.to_str());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Drop for CallgrindServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request: one or several limits of one subject.
struct MeasuredCase {
    name: &'static str,
    /// The rule and rate of each charge.
    places: Vec<(RuleName, u8)>,
    limit: Limit,
}

fn case(name: &'static str, algorithm: Algorithm, count: u64, rules: u8, rates: u8) -> MeasuredCase {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(3_600));
    let place = |rule: u8| (0..rates).map(move |rate| (RuleName::new(&format!("rule{rule}")), rate));
    MeasuredCase {
        name,
        places: (0..rules).flat_map(place).collect(),
        limit: Limit::compile(&spec, Precision::Double).expect("a limit"),
    }
}

fn request(case: &MeasuredCase, subject: u128) -> ChargeSet<'_> {
    let bits = subject.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    let charges = case.places.iter().map(|(rule, rate)| Charge {
        subject: Fingerprint::new(bits),
        rule,
        rate: *rate,
        limit: Cow::Borrowed(&case.limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    });
    ChargeSet::of(charges)
}

async fn charge_all(store: &RedisStore, case: &MeasuredCase, subjects: impl Iterator<Item = u128>) {
    let requests: Vec<ChargeSet<'_>> = subjects.map(|subject| request(case, subject)).collect();
    for batch in requests.chunks(BATCH) {
        let batch: Vec<&ChargeSet<'_>> = batch.iter().collect();
        for outcome in store.charge_each(&batch).await {
            outcome.expect("a reply");
        }
    }
}

fn textbook(connection: &mut redis::Connection, hash: &str, calls: u128) {
    for batch in 0..calls / BATCH as u128 {
        let mut pipeline = redis::pipe();
        for i in 0..BATCH as u128 {
            let key = format!("tg:{{{:022}}}:rule0", (batch + i) % SUBJECTS);
            let call = pipeline.cmd("EVALSHA").arg(hash).arg(1).arg(key);
            call.arg(1_000_000).arg(1).arg(1);
        }
        let _: Vec<redis::Value> = pipeline.query(connection).expect("replies");
    }
}

async fn connect() -> RedisStore {
    let mut config = RedisConfig::new(&format!("redis://127.0.0.1:{PORT}"));
    config.reply_timeout = Duration::from_secs(60);
    config.connect_timeout = Duration::from_secs(10);
    config.connections = 1;
    let store = RedisStore::open(&config).expect("an address");
    store.ready().await;
    store
}

async fn instructions() {
    let server = CallgrindServer::start(true);
    let store = connect().await;
    let client = redis::Client::open(format!("redis://127.0.0.1:{PORT}")).expect("an address");
    let mut direct = client.get_connection().expect("a server");
    let mut load = redis::cmd("SCRIPT");
    let hash: String = load.arg("LOAD").arg(TEXTBOOK).query(&mut direct).expect("a hash");
    textbook(&mut direct, &hash, 200);
    server.control("-z");
    textbook(&mut direct, &hash, CALLS);
    let base = server.instructions() / CALLS as u64;
    println!("| request | instructions | of a textbook bucket |\n|---|---|---|");
    println!("| textbook bucket | {base} | 1.00 |");
    let max = 1_000_000;
    let cases = [
        case("token bucket", Algorithm::TokenBucket, max, 1, 1),
        case("token bucket, denied", Algorithm::TokenBucket, 1, 1, 1),
        case("fixed window", Algorithm::FixedWindow, max, 1, 1),
        case("sliding window", Algorithm::SlidingWindow, max / 4, 1, 1),
        case("sliding window, strict", Algorithm::SlidingWindowStrict, max, 1, 1),
        case("sliding log of 40", Algorithm::SlidingLog, 1_000, 1, 1),
        case("leaky queue", Algorithm::LeakyQueue, max, 1, 1),
        case("four rates of a rule", Algorithm::TokenBucket, max, 1, 4),
        case("four rules", Algorithm::TokenBucket, max, 4, 1),
    ];
    for case in &cases {
        let () = redis::cmd("FLUSHALL").query(&mut direct).expect("a reply");
        charge_all(&store, case, (0..200).map(|i| i % SUBJECTS)).await;
        server.control("-z");
        charge_all(&store, case, (0..CALLS).map(|i| i % SUBJECTS)).await;
        let each = server.instructions() / CALLS as u64;
        println!("| {} | {each} | {:.2} |", case.name, each as f64 / base as f64);
    }
}

fn used_memory(connection: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query(connection).expect("text");
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|bytes| bytes.parse().ok()).expect("a number")
}

async fn bytes() {
    println!("| algorithm | one rate | four rates |\n|---|---|---|");
    for algorithm in Algorithm::ALL {
        let mut row = Vec::new();
        for rates in [1, 4] {
            let _server = CallgrindServer::start(false);
            let store = connect().await;
            let client = redis::Client::open(format!("redis://127.0.0.1:{PORT}"));
            let mut direct = client.expect("an address").get_connection().expect("a server");
            let case = case("", algorithm, 10, 1, rates);
            charge_all(&store, &case, 0..1_000).await;
            let before = used_memory(&mut direct);
            charge_all(&store, &case, 1_000..101_000).await;
            row.push((used_memory(&mut direct) - before).div_ceil(100_000));
        }
        println!("| {algorithm} | {} | {} |", row[0], row[1]);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("instructions") => instructions().await,
        Some("bytes") => bytes().await,
        _ => println!("name what to measure: instructions or bytes"),
    }
}
