//! Load on a schedule. A request that could not be sent, or had no response in time, has failed. A node that
//! restarts at another address is found there.
//!
//! Time is counted in ticks of a thread that sleeps and wakes on this machine, so that a machine that stalls does
//! not fail a node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::{Fleet, NodeAddresses};
use crate::history::{CheckReply, RequestHistory, RequestRecord, now};
use crate::http::{HttpClient, check_body};

const TICK: Duration = Duration::from_millis(50);

/// A request that takes more ticks than this has failed. On an idle machine they are 5 s, far shorter than an
/// outage lasts: a node that waits for a broken store is detected.
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

/// Load that runs until it is stopped.
pub(crate) struct RequestLoad {
    stopped: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Vec<RequestRecord>>>,
}

/// A connection and its address.
type OpenClient = (SocketAddr, HttpClient);

/// The load of one connection.
struct LoadSender {
    rule: &'static str,
    node: usize,
    addresses: NodeAddresses,
    /// Number of requests in one list.
    length: u32,
    first: Instant,
    every: Duration,
}

impl RequestLoad {
    /// Sends `per_second` requests for each rule, evenly over all nodes.
    pub(crate) fn start(fleet: &Fleet, per_second: &[(&'static str, u32)]) -> RequestLoad {
        RequestLoad::of_lists(fleet, per_second, 1)
    }

    /// The same in lists of `length`, which cost this machine less.
    pub(crate) fn of_lists(fleet: &Fleet, per_second: &[(&'static str, u32)], length: u32) -> RequestLoad {
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

    /// Stops the load. Returns all requests with their responses.
    pub(crate) fn stop(self) -> RequestHistory {
        self.stopped.store(true, Ordering::Release);
        let each = self.senders.into_iter().map(|sender| sender.join().unwrap());
        RequestHistory::of(each.flatten().collect())
    }
}

impl LoadSender {
    fn run(&self, stopped: &AtomicBool) -> Vec<RequestRecord> {
        let one = check_body("192.0.2.1", &format!("/{}", self.rule));
        let body = match self.length {
            1 => one,
            length => format!("[{}]", vec![one; length as usize].join(",")),
        };
        let (mut records, mut client) = (Vec::new(), None);
        let mut due = self.first;
        while !stopped.load(Ordering::Acquire) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = now();
            let decisions = self.decisions(&mut client, &body);
            let received = now();
            let each: Vec<Result<CheckReply, String>> = match decisions {
                Ok(decisions) => decisions.into_iter().map(Ok).collect(),
                Err(why) => vec![Err(why); self.length as usize],
            };
            records.extend(each.into_iter().map(|decision| RequestRecord {
                rule: self.rule,
                node: self.node,
                sent,
                received,
                decision,
            }));
            due += self.every;
        }
        records
    }

    fn decisions(&self, open: &mut Option<OpenClient>, body: &str) -> Result<Vec<CheckReply>, String> {
        let begun = ticks();
        let address = self.addresses.of(self.node);
        let mut client = match open.take() {
            Some((to, client)) if to == address => client,
            _ => HttpClient::try_connect(address).map_err(|error| error.to_string())?,
        };
        let reply = client
            .send("POST", "/v1/check", &[], body)
            .and_then(|()| client.receive())
            .map_err(|error| error.to_string())?;
        *open = Some((address, client));
        match (reply.status, ticks() - begun) {
            (200 | 429, took) if took < MAX_TICKS => match self.length {
                1 => CheckReply::read(&reply.body).map(|decision| vec![decision]),
                _ => CheckReply::read_all(&reply.body),
            },
            (status, took) => Err(format!("{status} after {took} ticks")),
        }
    }
}
