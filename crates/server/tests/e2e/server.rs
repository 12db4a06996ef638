//! Starts the binary, reads its addresses from its log, and stops it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use crate::http::{HttpClient, HttpReply};

/// Longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// The address of a listener that is off.
const NOWHERE: &str = "0.0.0.0:0";

/// A running server.
pub(crate) struct TestServer {
    child: Child,
    log: ServerLog,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// As in the log: an address, or `unix:` and a path.
    pub(crate) grpc: String,
    pub(crate) dir: TempDir,
}

/// Log lines as they come.
#[derive(Clone, Default)]
struct ServerLog(Arc<(Mutex<LogLines>, Condvar)>);

#[derive(Default)]
struct LogLines {
    lines: Vec<(SystemTime, Value)>,
    ended: bool,
}

impl TestServer {
    /// With these rules and no other settings.
    pub(crate) fn start(rules: &str) -> Self {
        TestServer::with(rules, &[])
    }

    /// With these rules and further flags.
    pub(crate) fn with(rules: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let mut command = Command::new(BINARY);
        command.args(["serve", "--rules"]).arg(dir.path().join("rules.yaml")).args(flags);
        TestServer::spawn(command, dir)
    }

    /// From a command that ends in `serve` and its flags.
    pub(crate) fn spawn(mut command: Command, dir: TempDir) -> Self {
        for flag in ["--http", "--grpc"] {
            if !command.get_args().any(|arg| arg == flag) {
                command.args([flag, "127.0.0.1:0"]);
            }
        }
        command.args(["--admin", "127.0.0.1:0", "--log-format", "json"]);
        TestServer::spawn_as_is(command, dir)
    }

    /// From a complete command, which also sets JSON logs.
    pub(crate) fn spawn_as_is(command: Command, dir: TempDir) -> Self {
        let mut command = without_terminal(&command);
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let is_off = |flag: &str| words.windows(2).any(|pair| pair[0] == flag && pair[1] == "off");
        let mut child = command
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = ServerLog::default();
        let (filling, stderr) = (log.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || filling.fill(stderr));
        let address = |edge: &str| {
            let line = log.wait(|line| line["message"] == "listening" && line["edge"] == edge);
            line["address"].as_str().unwrap().to_owned()
        };
        let listener_address = |edge: &str| {
            if is_off(&format!("--{edge}")) { NOWHERE.to_owned() } else { address(edge) }
        };
        let (admin, grpc) = (address("admin").parse().unwrap(), listener_address("grpc"));
        let http = listener_address("http").parse().unwrap();
        TestServer { child, log, http, admin, grpc, dir }
    }

    pub(crate) fn rules_path(&self) -> PathBuf {
        self.dir.path().join("rules.yaml")
    }

    /// Replaces a file as a whole, by renaming.
    pub(crate) fn write(&self, name: &str, text: &str) {
        write_whole(&self.dir.path().join(name), text);
    }

    pub(crate) fn client(&self) -> HttpClient {
        HttpClient::connect(self.http)
    }

    /// One request on its own connection.
    pub(crate) fn post(&self, path: &str, body: &str) -> HttpReply {
        self.client().post(path, body)
    }

    pub(crate) fn admin_get(&self, path: &str) -> HttpReply {
        HttpClient::connect(self.admin).request("GET", path, &[], "")
    }

    pub(crate) fn admin_post(&self, path: &str, body: &str) -> HttpReply {
        HttpClient::connect(self.admin).post(path, body)
    }

    /// The value of one sample of the metrics page, 0 if it is missing.
    pub(crate) fn metric(&self, sample: &str) -> u64 {
        metric(&self.admin_get("/metrics").body, sample)
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log line.
    pub(crate) fn wait_log(&self, is: impl Fn(&Value) -> bool) -> Value {
        self.log.wait(is)
    }

    /// The lines so far, and when each was read.
    pub(crate) fn lines(&self) -> Vec<(SystemTime, Value)> {
        self.log.0.0.lock().unwrap().lines.clone()
    }

    /// Waits for the end and returns the whole log.
    pub(crate) fn wait_end(mut self) -> (ExitStatus, Vec<Value>) {
        let status = wait_for("the process to end", || self.child.try_wait().unwrap());
        let (lines, changed) = &*self.log.0;
        let lines = changed.wait_while(lines.lock().unwrap(), |lines| !lines.ended).unwrap();
        let lines = lines.lines.iter().map(|(_, line)| line.clone());
        (status, lines.collect())
    }
}

/// The same command in its own session, as a supervisor starts it: SIGHUP ends a server that has a terminal, and
/// the person who runs the tests may have one.
fn without_terminal(command: &Command) -> Command {
    let mut detached = Command::new("setsid");
    detached.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => detached.env(name, value),
            None => detached.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        detached.current_dir(folder);
    }
    detached
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerLog {
    fn fill(&self, from: impl std::io::Read) {
        let (lines, changed) = &*self.0;
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            lines.lock().unwrap().lines.push((SystemTime::now(), line));
            changed.notify_all();
        }
        lines.lock().unwrap().ended = true;
        changed.notify_all();
    }

    fn wait(&self, is: impl Fn(&Value) -> bool) -> Value {
        let (lines, changed) = &*self.0;
        let missing = |lines: &mut LogLines| !lines.ended && !lines.lines.iter().any(|(_, line)| is(line));
        let (lines, _) = changed.wait_timeout_while(lines.lock().unwrap(), DEADLINE, missing).unwrap();
        let found = lines.lines.iter().map(|(_, line)| line).find(|line| is(line));
        found.unwrap_or_else(|| panic!("no such line in {:#?}", lines.lines)).clone()
    }
}

pub(crate) fn metric(page: &str, sample: &str) -> u64 {
    let line = page.lines().find(|line| line.starts_with(sample) && !line.starts_with('#'));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

pub(crate) fn write_whole(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(&next, path).unwrap();
}

/// Polls until there is a value.
pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(begun.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
