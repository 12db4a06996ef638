//! Requests on schedule: a node that stalls does not hold up those that come after, and what could not
//! be sent or was not answered in time has failed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::history::{Answer, History, Record, now};
use crate::http::{Client, ask};

/// Later than this is failed. Longer than a busy machine stalls, and far shorter than an outage lasts: who
/// waits for a broken store is found out.
const IN_TIME: Duration = Duration::from_secs(5);

/// Connections for one rule on one node.
const CONNECTIONS: u32 = 4;

/// Load that goes on until it is stopped.
pub(crate) struct Load {
    stopped: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Vec<Record>>>,
}

/// One connection's part of the load.
struct Sender {
    rule: &'static str,
    node: usize,
    address: SocketAddr,
    first: Instant,
    every: Duration,
}

impl Load {
    /// So many requests a second for each rule, evenly over all nodes.
    pub(crate) fn start(fleet: &Fleet, per_second: &[(&'static str, u32)]) -> Load {
        let stopped = Arc::new(AtomicBool::new(false));
        let (begun, nodes) = (Instant::now(), fleet.nodes.len());
        let mut senders = Vec::new();
        for (rule, rate) in per_second {
            let connections = CONNECTIONS * u32::try_from(nodes).unwrap();
            let apart = Duration::from_secs(1) / *rate;
            for i in 0..connections {
                let node = i as usize % nodes;
                let sender = Sender {
                    rule,
                    node,
                    address: fleet.nodes[node].http,
                    first: begun + apart * i,
                    every: apart * connections,
                };
                let stopped = Arc::clone(&stopped);
                senders.push(std::thread::spawn(move || sender.run(&stopped)));
            }
        }
        Load { stopped, senders }
    }

    /// Ends it; everything that was asked and answered.
    pub(crate) fn stop(self) -> History {
        self.stopped.store(true, Ordering::Release);
        let each = self
            .senders
            .into_iter()
            .map(|sender| sender.join().unwrap());
        History::of(each.flatten().collect())
    }
}

impl Sender {
    fn run(&self, stopped: &AtomicBool) -> Vec<Record> {
        let body = ask("192.0.2.1", &format!("/{}", self.rule));
        let (mut records, mut client) = (Vec::new(), None);
        let mut due = self.first;
        while !stopped.load(Ordering::Acquire) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = now();
            let answer = match due.elapsed() < IN_TIME {
                true => self.decision(&mut client, &body),
                false => Err("could not be sent in time".to_owned()),
            };
            records.push(Record {
                rule: self.rule,
                node: self.node,
                sent,
                heard: now(),
                answer,
            });
            due += self.every;
        }
        records
    }

    fn decision(&self, open: &mut Option<Client>, body: &str) -> Result<Answer, String> {
        let begun = Instant::now();
        let mut client = match open.take() {
            Some(client) => client,
            None => Client::try_connect(self.address).map_err(|error| error.to_string())?,
        };
        let reply = client
            .send("POST", "/v1/check", &[], body)
            .and_then(|()| client.receive())
            .map_err(|error| error.to_string())?;
        *open = Some(client);
        match (reply.status, begun.elapsed()) {
            (200 | 429, took) if took < IN_TIME => Answer::read(&reply.body),
            (status, took) => Err(format!("{status} after {took:?}")),
        }
    }
}
