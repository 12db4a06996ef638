//! A server under test: a process of ours on one core, asked for its processor time and ended with us.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The core servers run on; the load runs on the other.
const SERVER_CORE: &str = "0";

/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Clock ticks in a second of `/proc/PID/stat`: the same on every Linux.
const TICKS_PER_SEC: f64 = 100.0;

/// A running server. Dropping it ends the process.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts `program`, pinned, with the arguments made for a free port, and waits until it listens.
    pub(crate) fn start(
        program: &str,
        arguments: impl FnOnce(u16) -> Vec<String>,
    ) -> io::Result<Self> {
        let address = free_address()?;
        let process = Command::new("taskset")
            .args(["-c", SERVER_CORE, program])
            .args(arguments(address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut server = Server { process, address };
        server.wait_until_listening(program)?;
        // Nobody reads further messages; closed, the pipe cannot fill up and stop the server.
        server.process.stderr = None;
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor seconds it has used since it started, in user space and in the kernel.
    pub(crate) fn cpu_secs(&self) -> io::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The second field is the program's name in brackets and may hold spaces.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(str::parse::<f64>);
        let ticks: Vec<f64> = ticks.filter_map(Result::ok).collect();
        match ticks[..] {
            [user, kernel] => Ok((user + kernel) / TICKS_PER_SEC),
            _ => Err(io::Error::other("no processor time in /proc/PID/stat")),
        }
    }

    fn wait_until_listening(&mut self, program: &str) -> io::Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.process.try_wait()?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                return Err(io::Error::other(self.why_not(program)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn why_not(&mut self, program: &str) -> String {
        let _ = self.process.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        format!(
            "{program} does not listen on {}: {}",
            self.address,
            said.trim()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Between this and the server's own bind another process could take the port; then the start fails
/// and says so.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
