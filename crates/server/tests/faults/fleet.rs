//! Four nodes of the service, and a fault proxy between them and the store they share.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::{FaultProxy, ProxyFault, ShiftedClock};
use tokio::runtime::Runtime;

use crate::history::{CheckReply, of_day};
use crate::http::check_body;
use crate::rates::{TestRate, rules};
use crate::server::{BINARY, TestServer, wait_for};

/// The store budget of the nodes: long enough that a busy machine does not look like a broken store, and shorter
/// than any fault here delays a reply.
pub(crate) const BUDGET: Nanos = Nanos::from_millis(200);

/// The log lines of a node when the breaker opens, when it closes, and when counts were lost.
pub(crate) const OPENED: &str = "the store fails: ";
pub(crate) const CLOSED: &str = "the store replies again";
pub(crate) const LOST: &str = "the store has lost counts";

/// Nodes that share a store.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<TestServer>,
    pub(crate) addresses: NodeAddresses,
    plan: NodeOptions,
}

/// The current address of each node.
#[derive(Clone)]
pub(crate) struct NodeAddresses(Arc<[Mutex<SocketAddr>]>);

impl NodeAddresses {
    pub(crate) fn of(&self, node: usize) -> SocketAddr {
        *self.0[node].lock().unwrap()
    }

    fn move_to(&self, node: usize, address: SocketAddr) {
        *self.0[node].lock().unwrap() = address;
    }
}

/// The options of all nodes.
struct NodeOptions {
    rules: String,
    store: String,
    budget: Nanos,
}

impl NodeOptions {
    fn node(&self, clock: Option<&ShiftedClock>) -> TestServer {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rules.yaml"), &self.rules).unwrap();
        let mut command = Command::new(BINARY);
        command
            .args(["serve", "--store", &self.store, "--store-budget"])
            .arg(self.budget.duration().as_millis().to_string())
            .arg("--rules")
            .arg(dir.path().join("rules.yaml"));
        if let Some(clock) = clock {
            clock.attach(&mut command);
        }
        TestServer::spawn(command, dir)
    }
}

impl Fleet {
    /// Four nodes that know each other and are exact.
    pub(crate) fn start(rates: &[TestRate], store: &str) -> Fleet {
        Fleet::begin(rates, store, BUDGET, &[])
    }

    /// The same with clocks of their own.
    pub(crate) fn begin(rates: &[TestRate], store: &str, budget: Nanos, clocks: &[ShiftedClock]) -> Fleet {
        let plan = NodeOptions { rules: rules(rates), store: store.to_owned(), budget };
        let nodes: Vec<TestServer> = (0..4).map(|i| plan.node(clocks.get(i))).collect();
        let addresses = nodes.iter().map(|node| Mutex::new(node.http)).collect();
        let fleet = Fleet { nodes, addresses: NodeAddresses(addresses), plan };
        fleet.wait_exact();
        // A node that has just started takes a second to learn the number of nodes.
        std::thread::sleep(Duration::from_millis(1_500));
        fleet
    }

    /// Kills a node, as a crash would.
    pub(crate) fn kill(&self, node: usize) {
        self.nodes[node].signal("KILL");
    }

    /// Starts a new node in the place of one that is gone. It has no state of the old one.
    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node] = self.plan.node(None);
        self.addresses.move_to(node, self.nodes[node].http);
    }

    /// Waits until every node is exact.
    pub(crate) fn wait_exact(&self) {
        self.nodes.iter().for_each(wait_exact);
    }

    /// How often each node has logged a line that begins with `words`.
    pub(crate) fn count_logged(&self, words: &str) -> Vec<usize> {
        let count = |node: &TestServer| node.lines().iter().filter(|l| begins(&l.1, words)).count();
        self.nodes.iter().map(count).collect()
    }

    /// When a node first logged it after `from`.
    pub(crate) fn first_logged(&self, words: &str, from: Nanos) -> Option<Nanos> {
        let logged = self.nodes.iter().flat_map(|node| {
            let lines = node.lines().into_iter();
            lines.filter(|line| begins(&line.1, words)).map(|l| of_day(l.0))
        });
        logged.filter(|at| *at >= from).min()
    }

    /// How much of a limit is used, by a peek at a node.
    pub(crate) fn used(&self, node: usize, rate: &TestRate) -> u64 {
        let body = check_body("192.0.2.1", &format!("/{}", rate.name));
        let reply = self.nodes[node].post("/v1/peek", &body);
        rate.count - CheckReply::read(&reply.body).unwrap().remaining
    }

    /// Units that the store may count twice, as the nodes themselves report it: they sent a charge and have no
    /// reply to it.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.metrics("tidegate_store_unconfirmed_units_total")
    }

    /// The sum of a metric over all nodes.
    pub(crate) fn metrics(&self, name: &str) -> u64 {
        self.nodes.iter().map(|node| node.metric(name)).sum()
    }

    /// Every admission is charged in the store, and beside them no more than the charges without a reply.
    /// `per_second` requests are admitted in a second: that many may be missing for each time that a node trusted
    /// the store before all nodes had restored what they remember, which the node itself reports.
    #[track_caller]
    pub(crate) fn accounts_for(&self, rate: &TestRate, admitted: u64, per_second: u64) {
        let mut charged = 0;
        wait_for("every admission to be charged", || {
            charged = self.used(0, rate);
            let early = self.metrics("tidegate_store_trusted_early_total");
            (charged + early * per_second >= admitted).then_some(())
        });
        let more = self.unconfirmed();
        assert!(charged <= admitted + more, "{charged} charged for {admitted} admissions, {more} not confirmed");
    }
}

/// A node that waits for its store as long as it takes, because the store is not what breaks. It shuts down when it
/// gets a signal.
pub(crate) fn patient(store: &str, rules: &str) -> TestServer {
    let flags = ["--store", store, "--store-budget", "30000", "--drain-delay", "0"];
    let node = TestServer::with(rules, &flags);
    wait_exact(&node);
    node
}

/// Waits until a node is exact.
pub(crate) fn wait_exact(node: &TestServer) {
    wait_for("an exact node", || {
        (node.metric("tidegate_store_exact") == 1 && node.metric("tidegate_store_breaker_open") == 0).then_some(())
    });
}

fn begins(line: &serde_json::Value, words: &str) -> bool {
    let message = line["message"].as_str();
    message.is_some_and(|message| message.starts_with(words))
}

/// A link to the store that can be disturbed.
pub(crate) struct StoreLink {
    proxy: FaultProxy,
    _runtime: Runtime,
}

impl StoreLink {
    pub(crate) fn to(store: SocketAddr) -> StoreLink {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let proxy = runtime.block_on(FaultProxy::new(store)).unwrap();
        StoreLink { proxy, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    pub(crate) fn set(&self, fault: ProxyFault) {
        self.proxy.set(fault);
    }
}
