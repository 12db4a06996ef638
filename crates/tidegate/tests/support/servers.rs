//! Real servers for tests: each on a free port of its own, in a folder of its own, gone when dropped.
//!
//! `scripts/tools` installs them. A missing one is a failure that says so.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that speaks the protocol of Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    Redis7,
    Redis8,
    Valkey8,
    Valkey9,
}

impl Program {
    pub(crate) const ALL: [Program; 4] = [
        Program::Redis7,
        Program::Redis8,
        Program::Valkey8,
        Program::Valkey9,
    ];

    fn path(self) -> PathBuf {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
        match self {
            Program::Redis7 => PathBuf::from("redis-server"),
            Program::Redis8 => tools.join("redis-8"),
            Program::Valkey8 => tools.join("valkey-8"),
            Program::Valkey9 => tools.join("valkey-9"),
        }
    }
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Server {
    pub(crate) fn redis7() -> Server {
        Server::start(Program::Redis7, &[])
    }

    pub(crate) fn redis8() -> Server {
        Server::start(Program::Redis8, &[])
    }

    pub(crate) fn valkey8() -> Server {
        Server::start(Program::Valkey8, &[])
    }

    pub(crate) fn valkey9() -> Server {
        Server::start(Program::Valkey9, &[])
    }

    /// Starts `program` with nothing but `options` changed, and waits until it answers.
    pub(crate) fn start(program: Program, options: &[&str]) -> Server {
        Server::start_on(free_port(), program, options)
    }

    /// The same on a port that was free before.
    pub(crate) fn start_on(port: u16, program: Program, options: &[&str]) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(program.path());
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--unixsocket", "redis.sock", "--save", ""])
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!(
                "{program:?} does not start ({error}): run scripts/tools, which installs it as {}",
                program.path().display()
            )
        });
        let mut server = Server {
            child,
            folder,
            port,
        };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server ended at once: {status}");
            }
            if self.answers() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not answer on port {}", self.port);
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let mut reply = [0; 1];
        let sent = stream.write_all(b"PING\r\n").is_ok();
        sent && stream.read(&mut reply).is_ok_and(|len| len == 1)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
