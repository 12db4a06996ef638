//! Real reverse proxies, run with the configuration files of `docs`.
//!
//! The folders `docs/proxies` and `docs/envoy` are copied, with the ports of the test instead of those of the
//! page, and the program runs in that copy with the command of the page. `scripts/tools` installs the
//! programs.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::free_port;

/// The product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyProduct {
    /// Caddy.
    Caddy,
    /// Envoy.
    Envoy,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// Traefik.
    Traefik,
}

/// A release of a proxy, by the name of its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyRelease {
    /// The product.
    pub product: ProxyProduct,
    /// The program.
    pub program: &'static str,
}

impl ProxyProduct {
    /// The command line of the page, in the root of the repository.
    pub fn command_line(self) -> &'static str {
        match self {
            ProxyProduct::Caddy => "caddy run --config docs/proxies/Caddyfile",
            ProxyProduct::Envoy => "envoy --disable-hot-restart -c docs/envoy/envoy.yaml",
            ProxyProduct::Haproxy => "haproxy -f docs/proxies/haproxy.cfg",
            ProxyProduct::Nginx => "nginx -p . -c docs/proxies/nginx.conf",
            ProxyProduct::Traefik => {
                "traefik --entryPoints.web.address=127.0.0.1:8000 --providers.file.filename=docs/proxies/traefik.yaml"
            }
        }
    }

    /// The oldest and the newest release that the page supports, as `scripts/tools` installs them.
    pub fn releases(self) -> [ProxyRelease; 2] {
        let programs = match self {
            ProxyProduct::Caddy => ["caddy-2.8", "caddy"],
            ProxyProduct::Envoy => ["envoy", "envoy"],
            ProxyProduct::Haproxy => ["haproxy", "haproxy-3.0"],
            ProxyProduct::Nginx => ["nginx", "nginx-1.31"],
            ProxyProduct::Traefik => ["traefik-3.0", "traefik"],
        };
        programs.map(|program| ProxyRelease { product: self, program })
    }

    fn folder(self) -> &'static str {
        match self {
            ProxyProduct::Envoy => "docs/envoy",
            _ => "docs/proxies",
        }
    }
}

impl ProxyRelease {
    /// Its version, as the program prints it.
    ///
    /// # Panics
    ///
    /// When the program is missing or prints no version.
    pub fn version(self) -> String {
        let flag = match self.product {
            ProxyProduct::Caddy | ProxyProduct::Traefik => "version",
            ProxyProduct::Envoy => "--version",
            ProxyProduct::Haproxy | ProxyProduct::Nginx => "-v",
        };
        let ran = Command::new(self.program)
            .arg(flag)
            .env("PATH", search_path())
            .output()
            .unwrap_or_else(|error| panic!("{self:?}: {error}; run scripts/tools"));
        let printed = [ran.stdout, ran.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let mut numbers = printed.split(|c: char| !(c.is_ascii_digit() || c == '.'));
        let version = numbers.find(|word| word.split('.').filter(|part| !part.is_empty()).count() > 2);
        version.unwrap_or_else(|| panic!("{self:?} prints no version: {printed}")).to_owned()
    }
}

/// The ports in the files: for clients, internal, for operators.
const PORTS: [u16; 3] = [8000, 8001, 9901];

/// A running proxy.
pub struct ReverseProxy {
    release: ProxyRelease,
    child: Child,
    folder: TempDir,
    port: u16,
    admin: u16,
}

impl ReverseProxy {
    /// Starts it with these edits of its files, and waits until `GET /ready` through it returns 200.
    ///
    /// # Panics
    ///
    /// When the program is missing, rejects its file, or does not respond in time.
    pub fn start(release: ProxyRelease, edits: &[(&str, &str)]) -> ReverseProxy {
        let deadline = Instant::now() + Duration::from_secs(60);
        // Another process may take the free port before the proxy does; then another port is tried.
        loop {
            let mut proxy = ReverseProxy::spawn(release, edits);
            match proxy.wait(deadline) {
                Ok(()) => return proxy,
                Err(output) => assert!(
                    output.to_lowercase().contains("address already in use") && Instant::now() < deadline,
                    "{release:?} did not come up: {output}"
                ),
            }
        }
    }

    fn spawn(release: ProxyRelease, edits: &[(&str, &str)]) -> ReverseProxy {
        let product = release.product;
        let ports = PORTS.map(|_| free_port());
        let port_changes: Vec<_> = PORTS.into_iter().zip(ports).flat_map(port_edits).collect();
        let own = port_changes.iter().map(|(from, to)| (&**from, &**to));
        let requested = edits;
        let edits: Vec<_> = edits.iter().copied().chain(own).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let files = copy_edited(product.folder(), folder.path(), &edits);
        for (from, _) in requested {
            assert!(files.contains(from), "no file of {product:?} has {from:?}");
        }
        let words = product.command_line().split(' ').skip(1);
        let output = fs::File::create(folder.path().join("output")).expect("a file");
        let child = Command::new(release.program)
            .args(words.map(|word| replace_all(word, &edits)))
            .current_dir(folder.path())
            .env("PATH", search_path())
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("another handle"))
            .stderr(output)
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{release:?} does not start ({error}): run scripts/tools, which installs it")
        });
        ReverseProxy { release, child, folder, port: ports[0], admin: ports[2] }
    }

    /// Waits until it forwards requests. The error has its output.
    fn wait(&mut self, deadline: Instant) -> Result<(), String> {
        while Instant::now() < deadline {
            if is_ready(self.address()) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{status}: {}", self.output()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(format!("no response: {}", self.output()))
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The address for operators, if its files have one.
    pub fn admin(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.admin))
    }

    /// Its release.
    pub fn release(&self) -> ProxyRelease {
        self.release
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }
}

impl Drop for ReverseProxy {
    fn drop(&mut self) {
        terminate(&mut self.child);
    }
}

/// Terminates a program as its operator would, because nginx leaves its workers behind when it is killed. A
/// program that does not exit in time is killed nevertheless.
pub fn terminate(child: &mut Child) {
    let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
    if ended(child) {
        return;
    }
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if ended(child) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The folder of `scripts/tools`, then the usual path, then the folders where Debian puts programs for root.
pub fn search_path() -> String {
    let tools = root().join("target/tools");
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}:/usr/sbin:/sbin", tools.display())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies a folder of the repository to the same place below `to`, with edits of its files. Returns the
/// original text of all files together.
///
/// # Panics
///
/// When the folder does not exist.
pub fn copy_edited(folder: &str, to: &Path, edits: &[(&str, &str)]) -> String {
    let target = to.join(folder);
    fs::create_dir_all(&target).unwrap();
    let mut whole = String::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(target.join(path.file_name().unwrap()), replace_all(&text, edits)).unwrap();
        whole.push_str(&text);
    }
    whole
}

/// A port as files write it, after an address or as a value of its own, and its replacement.
pub fn port_edits((from, to): (u16, u16)) -> [(String, String); 2] {
    [":", ": "].map(|before| (format!("{before}{from}"), format!("{before}{to}")))
}

/// Replaces every `from` by its `to` in one pass, so that no replacement is replaced again.
pub fn replace_all(text: &str, edits: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        match edits.iter().find(|(from, _)| rest.starts_with(from)) {
            Some((from, to)) => {
                out.push_str(to);
                rest = &rest[from.len()..];
            }
            None => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    out
}

fn is_ready(address: SocketAddr) -> bool {
    let request = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: ready\r\nconnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok::<_, std::io::Error>(status)
    };
    request().is_ok_and(|status| status.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_is_not_replaced_again() {
        let edits = [(":80", ":81"), (":81", ":82"), ("é", "")];
        assert_eq!(replace_all("a:80 b:81é", &edits), "a:81 b:82");
    }
}
