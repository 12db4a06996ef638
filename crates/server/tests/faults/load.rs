//! Requests on schedule: what could not be sent or was not answered in time has failed. A node that comes back elsewhere is found there.
//!
//! Time is counted in ticks of a thread that sleeps and wakes on this machine, so that a machine which
//! stalls does not fail a node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::{Fleet, NodeAddresses};
use crate::history::{CheckReply, RequestHistory, RequestRecord, now};
use crate::http::{Client, ask};

const TICK: Duration = Duration::from_millis(50);

/// More ticks than this are failed. On an idle machine they are 5 s, far shorter than an outage lasts: a
/// node that waits for a broken store is detected.
const MAX_TICKS: u64 = 100;

/// Ticks since the first use.
fn ticks() -> u64 {
    static TICKS: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| {
        let ticks = Arc::<AtomicU64>::default();
        let ticking = Arc::clone(&ticks);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(TICK);
                ticking.fetch_add(1, Ordering::Relaxed);
            }
        });
        ticks
    });
    TICKS.load(Ordering::Relaxed)
}

/// Connections for one rule on one node.
const CONNECTIONS: u32 = 4;

/// Load that goes on until it is stopped.
pub(crate) struct RequestLoad {
    stopped: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Vec<RequestRecord>>>,
}

/// A connection, and to where.
type OpenClient = (SocketAddr, Client);

/// One connection's part of the load.
struct LoadSender {
    rule: &'static str,
    node: usize,
    addresses: NodeAddresses,
    /// Requests that are sent together.
    length: u32,
    first: Instant,
    every: Duration,
}

impl RequestLoad {
    /// So many requests a second for each rule, evenly over all nodes.
    pub(crate) fn start(fleet: &Fleet, per_second: &[(&'static str, u32)]) -> RequestLoad {
        RequestLoad::of_lists(fleet, per_second, 1)
    }

    /// The same in lists of `length`, which cost this machine less.
    pub(crate) fn of_lists(
        fleet: &Fleet,
        per_second: &[(&'static str, u32)],
        length: u32,
    ) -> RequestLoad {
        let stopped = Arc::new(AtomicBool::new(false));
        let (begun, nodes) = (Instant::now(), fleet.nodes.len());
        let mut senders = Vec::new();
        for (rule, rate) in per_second {
            let connections = CONNECTIONS * u32::try_from(nodes).unwrap();
            let apart = Duration::from_secs(1) * length / *rate;
            for i in 0..connections {
                let node = i as usize % nodes;
                let sender = LoadSender {
                    rule,
                    node,
                    addresses: fleet.addresses.clone(),
                    length,
                    first: begun + apart * i,
                    every: apart * connections,
                };
                let stopped = Arc::clone(&stopped);
                senders.push(std::thread::spawn(move || sender.run(&stopped)));
            }
        }
        RequestLoad { stopped, senders }
    }

    /// Ends it; everything that was asked and answered.
    pub(crate) fn stop(self) -> RequestHistory {
        self.stopped.store(true, Ordering::Release);
        let each = self
            .senders
            .into_iter()
            .map(|sender| sender.join().unwrap());
        RequestHistory::of(each.flatten().collect())
    }
}

impl LoadSender {
    fn run(&self, stopped: &AtomicBool) -> Vec<RequestRecord> {
        let one = ask("192.0.2.1", &format!("/{}", self.rule));
        let body = match self.length {
            1 => one,
            length => format!("[{}]", vec![one; length as usize].join(",")),
        };
        let (mut records, mut client) = (Vec::new(), None);
        let mut due = self.first;
        while !stopped.load(Ordering::Acquire) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = now();
            let answers = self.decisions(&mut client, &body);
            let heard = now();
            let each: Vec<Result<CheckReply, String>> = match answers {
                Ok(answers) => answers.into_iter().map(Ok).collect(),
                Err(why) => vec![Err(why); self.length as usize],
            };
            records.extend(each.into_iter().map(|answer| RequestRecord {
                rule: self.rule,
                node: self.node,
                sent,
                received: heard,
                answer,
            }));
            due += self.every;
        }
        records
    }

    fn decisions(
        &self,
        open: &mut Option<OpenClient>,
        body: &str,
    ) -> Result<Vec<CheckReply>, String> {
        let begun = ticks();
        let door = self.addresses.of(self.node);
        let mut client = match open.take() {
            Some((to, client)) if to == door => client,
            _ => Client::try_connect(door).map_err(|error| error.to_string())?,
        };
        let reply = client
            .send("POST", "/v1/check", &[], body)
            .and_then(|()| client.receive())
            .map_err(|error| error.to_string())?;
        *open = Some((door, client));
        match (reply.status, ticks() - begun) {
            (200 | 429, took) if took < MAX_TICKS => match self.length {
                1 => CheckReply::read(&reply.body).map(|answer| vec![answer]),
                _ => CheckReply::read_all(&reply.body),
            },
            (status, took) => Err(format!("{status} after {took} ticks")),
        }
    }
}
