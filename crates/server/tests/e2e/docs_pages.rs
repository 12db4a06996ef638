//! Runs the pages about proxies as written: their commands print what the pages show.
//!
//! Only ports differ, and values that change with time are masked. A line that ends in `&` stays running, and the
//! next other line waits for the proxy.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tidegate_testkit::{copy_edited, free_port, port_edits, replace_all, search_path, terminate};

use crate::http::HttpClient;
use crate::proxies::PATIENT;
use crate::server::{BINARY, wait_for};
use crate::window::unit;

const ENVOY: &str = include_str!("../../../../docs/envoy.md");
const PROXIES: &str = include_str!("../../../../docs/proxies.md");

/// Ports of the pages: of the proxy for clients, for itself and for its operator; Tidegate's; the backend's.
const PORTS: [u16; 6] = [8000, 8001, 9901, 8080, 8081, 3000];

/// A copy of the files that a page needs, and the programs that were started there.
struct PageRunner {
    folder: TempDir,
    ports: [u16; 6],
    running: Vec<Child>,
}

impl PageRunner {
    fn of(folder: &str) -> Self {
        let runner =
            PageRunner { folder: tempfile::tempdir().unwrap(), ports: PORTS.map(|_| free_port()), running: Vec::new() };
        let here = runner.folder.path();
        runner.edited(|edits| copy_edited(folder, here, edits));
        std::os::unix::fs::symlink(BINARY, here.join("tidegate")).unwrap();
        // The files of the backend: the page that is requested, and one that no rule matches.
        std::fs::write(here.join("docs/rules.md"), "rules").unwrap();
        std::fs::write(here.join("ready"), "ready").unwrap();
        runner
    }

    /// Calls `with` the texts that are to be replaced.
    fn edited<T>(&self, with: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let ports: Vec<_> = PORTS.into_iter().zip(self.ports).flat_map(port_edits).collect();
        let backend = format!("http.server {}", self.ports[5]);
        let chat = format!("backend.py {}", self.ports[5]);
        let edits = ports.iter().map(|(from, to)| (&**from, &**to));
        // A window that ends in between, or a busy machine, is not what the page is about.
        let window = format!("unit: {}", unit());
        let others = [
            ("unit: hour", &*window),
            ("timeout: 0.25s", "timeout: 20s"),
            ("http.server 3000", &*backend),
            ("backend.py 3000", &*chat),
        ];
        let edits = edits.chain(others).chain(PATIENT);
        with(&edits.collect::<Vec<_>>())
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let here = self.folder.path();
        let address = |port: usize| format!("127.0.0.1:{}", self.ports[port]);
        command
            .args(["-c", &self.edited(|edits| replace_all(line, edits))])
            .current_dir(here)
            .env("PATH", format!("{}:{}", here.display(), search_path()))
            .env("HOME", here)
            .env("TIDEGATE_HTTP", address(3))
            .env("TIDEGATE_GRPC", address(4))
            .env("TIDEGATE_ADMIN", "127.0.0.1:0")
            .env("TIDEGATE_RESP", "off")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start(&mut self, line: &str) {
        let mut command = self.shell(&format!("exec {line}"));
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        self.running.push(child);
    }

    /// The output of a line, once the proxy responds; none if one of the programs has ended.
    fn run(&mut self, line: &str) -> Option<String> {
        wait_for("the proxy to pass requests on", || {
            let ended = |child: &mut Child| child.try_wait().unwrap().is_some();
            let up = self.responds();
            (up || self.running.iter_mut().any(ended)).then_some(up)
        })
        .then_some(())?;
        let ran = self.shell(line).output().unwrap();
        assert!(ran.status.success(), "`{line}` failed");
        Some(String::from_utf8(ran.stdout).unwrap())
    }

    fn responds(&self) -> bool {
        let get = || {
            let mut client = HttpClient::try_connect(([127, 0, 0, 1], self.ports[0]).into())?;
            client.send("GET", "/ready", &[], "")?;
            client.receive()
        };
        get().is_ok_and(|reply| reply.status == 200)
    }
}

impl Drop for PageRunner {
    fn drop(&mut self) {
        for child in &mut self.running {
            terminate(child);
        }
    }
}

/// Masks the remaining wait, which differs from run to run.
fn masked(text: &str) -> String {
    let mut parts = text.split(";t=");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + ";t=*" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// The code block of a section.
fn block<'p>(page: &'p str, section: &str) -> &'p str {
    let section = page.split(&format!("## {section}\n")).nth(1).unwrap();
    let block = section.split("```console\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    assert!(block.lines().count() <= 10, "ten lines: {block}");
    block
}

/// Each line of a block, and its output.
fn lines(block: &str) -> impl Iterator<Item = (&str, &str)> {
    let steps = block.split("$ ").skip(1);
    steps.map(|step| step.split_once('\n').unwrap())
}

/// Runs a section in a copy of `folder`.
fn follow(page: &str, section: &str, folder: &str) {
    let block = block(page, section);
    // A port that is free now may be taken before its program has it; then everything runs again with others.
    let shown_steps = wait_for("programs that stay up; scripts/tools installs what is missing", || {
        steps(block, PageRunner::of(folder))
    });
    assert!(shown_steps > 0, "no step shows an output: {block}");
}

/// Runs each step of a block and counts those that show an output; none if a program has ended.
fn steps(block: &str, mut runner: PageRunner) -> Option<usize> {
    let mut shown_steps = 0;
    for (line, shown) in lines(block) {
        if let Some(line) = line.strip_suffix(" &") {
            runner.start(line);
        } else {
            assert_eq!(masked(&runner.run(line)?), masked(shown), "{line}");
            shown_steps += 1;
        }
    }
    Some(shown_steps)
}

#[test]
fn nginx_denies_as_the_page_shows() {
    follow(PROXIES, "nginx", "docs/proxies");
}

#[test]
fn caddy_denies_as_the_page_shows() {
    follow(PROXIES, "Caddy", "docs/proxies");
}

#[test]
fn traefik_denies_as_the_page_shows() {
    follow(PROXIES, "Traefik", "docs/proxies");
}

#[test]
fn haproxy_denies_as_the_page_shows() {
    follow(PROXIES, "HAProxy", "docs/proxies");
}

#[test]
fn envoy_denies_as_the_page_shows() {
    follow(ENVOY, "A first denial", "docs/envoy");
    follow(ENVOY, "Native rules behind Envoy", "docs/envoy");
}

/// What a response used is reported after it, so a busy machine may send the next request too soon; then everything
/// runs again.
#[test]
fn envoy_charges_what_responses_used_as_the_page_shows() {
    let block = block(ENVOY, "Costs known only after the response");
    wait_for("usage of responses, as the page shows it", || {
        let mut runner = PageRunner::of("docs/envoy");
        let mut same = true;
        for (line, shown) in lines(block) {
            match line.strip_suffix(" &") {
                Some(line) => runner.start(line),
                None => same &= masked(&runner.run(line)?) == masked(shown),
            }
        }
        same.then_some(())
    });
}
