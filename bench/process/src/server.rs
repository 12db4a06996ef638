//! A server under test: a child process on one core, whose processor time can be read. It ends with the
//! bench.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{cpu, resident};

/// The core servers run on; the load runs on the other.
const SERVER_CORE: &str = "0";

/// The maximum time until a server listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server. Dropping it ends the process.
pub struct ServerProcess {
    process: Child,
    address: SocketAddr,
}

impl ServerProcess {
    /// Starts `program`, pinned, with the arguments made for a free port, and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it cannot be started or does not listen in time; the error has its output.
    pub fn start(program: &str, arguments: impl FnOnce(u16) -> Vec<String>) -> io::Result<Self> {
        let address = free_address()?;
        let process = Command::new("taskset")
            .args(["-c", SERVER_CORE, program])
            .args(arguments(address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut server = ServerProcess { process, address };
        server.wait_until_listening(program)?;
        // No one reads further messages; a closed pipe cannot fill up and stop the server.
        server.process.stderr = None;
        Ok(server)
    }

    /// Starts Redis without persistence, with a module if there is one, and with further arguments.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or there is no such module.
    pub fn redis(module: Option<&Path>, more: &[&str]) -> io::Result<Self> {
        let module = module.map(Path::canonicalize).transpose()?;
        ServerProcess::start("redis-server", |port| {
            let port = port.to_string();
            let arguments = ["--port", &port, "--save", "", "--appendonly", "no"];
            let mut words: Vec<String> = arguments.iter().chain(more).map(|word| (*word).into()).collect();
            if let Some(file) = module {
                words.extend(["--loadmodule".to_owned(), file.display().to_string()]);
            }
            words
        })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor seconds it has used since it started, in user space and in the kernel.
    ///
    /// # Errors
    ///
    /// When the process has ended.
    pub fn cpu_secs(&self) -> io::Result<f64> {
        cpu::of(self.process.id())
    }

    /// Its resident bytes now, without the kernel memory of its sockets.
    ///
    /// # Errors
    ///
    /// When the process has ended.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        resident::of(self.process.id())
    }

    /// The process id, for profilers.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn wait_until_listening(&mut self, program: &str) -> io::Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.process.try_wait()?;
            if ended.is_some() || begun.elapsed() > LISTEN_TIMEOUT {
                return Err(io::Error::other(self.startup_error(program)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn startup_error(&mut self, program: &str) -> String {
        let _ = self.process.kill();
        let mut output = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            let _ = stderr.read_to_string(&mut output);
        }
        format!("{program} does not listen on {}: {}", self.address, output.trim())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Another process could take the port before the server binds it; then the start fails with that error.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
