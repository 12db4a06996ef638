//! Real Redis servers for tests: each on a free port, in a folder of its own, stopped on drop.
//!
//! `scripts/tools` installs them. A missing one fails its test with a message that says so.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::ShiftedClock;

/// A program that speaks the Redis protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedisProgram {
    /// Debian's Redis 7.0.
    Redis7,
    /// Redis 8.2.
    Redis8,
    /// Valkey 8.1.
    Valkey8,
    /// Valkey 9.1.
    Valkey9,
}

impl RedisProgram {
    /// Every program.
    pub const ALL: [RedisProgram; 4] =
        [RedisProgram::Redis7, RedisProgram::Redis8, RedisProgram::Valkey8, RedisProgram::Valkey9];

    pub(crate) fn path(self) -> PathBuf {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
        match self {
            RedisProgram::Redis7 => PathBuf::from("redis-server"),
            RedisProgram::Redis8 => tools.join("redis-8"),
            RedisProgram::Valkey8 => tools.join("valkey-8"),
            RedisProgram::Valkey9 => tools.join("valkey-9"),
        }
    }
}

/// A running server. Its data and its port outlive a crash.
pub struct TestRedis {
    program: RedisProgram,
    options: Vec<String>,
    clock: Option<Arc<ShiftedClock>>,
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl TestRedis {
    /// Debian's Redis 7.0 with its defaults, but without snapshots.
    pub fn redis7() -> TestRedis {
        TestRedis::start(RedisProgram::Redis7, &[])
    }

    /// Starts `program` with its defaults and `options`, and waits until it responds.
    pub fn start(program: RedisProgram, options: &[&str]) -> TestRedis {
        TestRedis::start_on(free_port(), program, options)
    }

    /// The same on a given free port.
    pub fn start_on(port: u16, program: RedisProgram, options: &[&str]) -> TestRedis {
        TestRedis::start_inner(port, program, options, None)
    }

    /// The same with a clock that can be shifted.
    pub fn start_with_clock(clock: Arc<ShiftedClock>, program: RedisProgram, options: &[&str]) -> TestRedis {
        TestRedis::start_inner(free_port(), program, options, Some(clock))
    }

    fn start_inner(port: u16, program: RedisProgram, options: &[&str], clock: Option<Arc<ShiftedClock>>) -> TestRedis {
        let folder = tempfile::tempdir().expect("a folder");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let child = spawn(program, port, folder.path(), &options, clock.as_deref());
        let mut server = TestRedis { program, options, clock, child, folder, port };
        server.wait();
        server
    }

    /// Restarts it on the same port and data, after [`TestRedis::kill`], and waits until it responds.
    pub fn restart(&mut self) {
        self.child = spawn(self.program, self.port, self.folder.path(), &self.options, self.clock.as_deref());
        self.wait();
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server exited at once: {status}");
            }
            if self.is_ready() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not respond on port {}", self.port);
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let mut reply = [0; 1];
        let sent = stream.write_all(b"PING\r\n").is_ok();
        sent && stream.read(&mut reply).is_ok_and(|len| len == 1)
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// The reply to one command, as `redis-cli` prints it.
    pub fn run_command(&self, command: &[&str]) -> String {
        redis_cli(self.port, command)
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Freezes it: connections stay open, no command gets a reply.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Resumes it.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {name}");
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    program: RedisProgram,
    port: u16,
    folder: &Path,
    options: &Vec<String>,
    clock: Option<&ShiftedClock>,
) -> Child {
    let mut command = Command::new(program.path());
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--unixsocket", "redis.sock", "--save", ""])
        .args(options)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(clock) = clock {
        clock.attach(&mut command);
    }
    command.spawn().unwrap_or_else(|error| {
        panic!(
            "{program:?} does not start ({error}): run scripts/tools, which installs it as {}",
            program.path().display()
        )
    })
}

/// The reply of the server on `port` to one command, as `redis-cli` prints it.
pub(crate) fn redis_cli(port: u16, command: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(command)
        .output()
        .unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/tools"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Repeats a query until the reply is as wanted. Panics with the last reply after a minute.
pub(crate) fn wait_until(what: &str, mut query: impl FnMut() -> String, wanted: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = query();
        if wanted(&reply) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: still {reply:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A free port on loopback.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
