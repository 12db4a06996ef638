//! Four nodes of the service, and the store they share with something in between.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_parts::{FaultProxy, ProxyFault, ShiftedClock};
use tokio::runtime::Runtime;

use crate::history::{CheckReply, of_day};
use crate::http::ask;
use crate::rates::{TestRate, rules};
use crate::server::{BINARY, Server, wait_for};

/// How long nodes wait for their store: so long that a busy machine is not taken for a broken store, and
/// shorter than any fault here delays an answer.
pub(crate) const BUDGET: Nanos = Nanos::from_millis(200);

/// What a node says when it gives the store up, and when it does not any more.
pub(crate) const OPENED: &str = "the store fails: ";
pub(crate) const CLOSED: &str = "the store answers again";
pub(crate) const LOST: &str = "the store has lost counts";

/// Nodes that share a store.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Server>,
    pub(crate) addresses: NodeAddresses,
    plan: NodeOptions,
}

/// Where each node is to be found at the moment.
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

/// What all nodes are started with.
struct NodeOptions {
    rules: String,
    store: String,
    budget: Nanos,
}

impl NodeOptions {
    fn node(&self, clock: Option<&ShiftedClock>) -> Server {
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
        Server::spawn(command, dir)
    }
}

impl Fleet {
    /// Four nodes that know each other and believe their store.
    pub(crate) fn start(rates: &[TestRate], store: &str) -> Fleet {
        Fleet::begin(rates, store, BUDGET, &[])
    }

    /// The same with clocks of their own.
    pub(crate) fn begin(
        rates: &[TestRate],
        store: &str,
        budget: Nanos,
        clocks: &[ShiftedClock],
    ) -> Fleet {
        let plan = NodeOptions {
            rules: rules(rates),
            store: store.to_owned(),
            budget,
        };
        let nodes: Vec<Server> = (0..4).map(|i| plan.node(clocks.get(i))).collect();
        let doors = nodes.iter().map(|node| Mutex::new(node.http)).collect();
        let fleet = Fleet {
            nodes,
            addresses: NodeAddresses(doors),
            plan,
        };
        fleet.wait_exact();
        // Whoever has just started takes a second to learn how many there are.
        std::thread::sleep(Duration::from_millis(1_500));
        fleet
    }

    /// Ends a node at once, as a crash would.
    pub(crate) fn kill(&self, node: usize) {
        self.nodes[node].signal("KILL");
    }

    /// Starts one in the place of a node that is gone. It knows nothing of before.
    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node] = self.plan.node(None);
        self.addresses.move_to(node, self.nodes[node].http);
    }

    /// Waits until every node believes its store.
    pub(crate) fn wait_exact(&self) {
        self.nodes.iter().for_each(wait_exact);
    }

    /// How often each node has said something that begins so.
    pub(crate) fn count_logged(&self, words: &str) -> Vec<usize> {
        let count = |node: &Server| node.lines().iter().filter(|l| begins(&l.1, words)).count();
        self.nodes.iter().map(count).collect()
    }

    /// When somebody first said it after `from`.
    pub(crate) fn first_logged(&self, words: &str, from: Nanos) -> Option<Nanos> {
        let said = self.nodes.iter().flat_map(|node| {
            let lines = node.lines().into_iter();
            lines
                .filter(|line| begins(&line.1, words))
                .map(|l| of_day(l.0))
        });
        said.filter(|at| *at >= from).min()
    }

    /// How much of a limit is used, as a node tells without using any.
    pub(crate) fn used(&self, node: usize, rate: &TestRate) -> u64 {
        let body = ask("192.0.2.1", &format!("/{}", rate.name));
        let reply = self.nodes[node].post("/v1/peek", &body);
        rate.count - CheckReply::read(&reply.body).unwrap().remaining
    }

    /// Units that the store may count twice, as the nodes themselves report it: they sent a charge and have
    /// no reply to it.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.metrics("tidegate_store_unconfirmed_units_total")
    }

    /// A metric of all nodes together.
    pub(crate) fn metrics(&self, name: &str) -> u64 {
        self.nodes.iter().map(|node| node.metric(name)).sum()
    }

    /// Every admission is charged in the store, and beside them at most what no node has a reply to. `per_second` are
    /// admitted in a second: so many may be missing for each time that a node trusted the store before all had put
    /// back what they remember, as it reports itself.
    #[track_caller]
    pub(crate) fn accounts_for(&self, rate: &TestRate, admitted: u64, per_second: u64) {
        let mut charged = 0;
        wait_for("every admission to be charged", || {
            charged = self.used(0, rate);
            let early = self.metrics("tidegate_store_trusted_early_total");
            (charged + early * per_second >= admitted).then_some(())
        });
        let more = self.unconfirmed();
        assert!(
            charged <= admitted + more,
            "{charged} charged for {admitted} admissions, {more} not confirmed"
        );
    }
}

/// A node that waits for its store as long as it takes: it is not what breaks. When told to go it goes.
pub(crate) fn patient(store: &str, rules: &str) -> Server {
    let flags = [
        "--store",
        store,
        "--store-budget",
        "30000",
        "--drain-delay",
        "0",
    ];
    let node = Server::with(rules, &flags);
    wait_exact(&node);
    node
}

/// Waits until a node believes its store.
pub(crate) fn wait_exact(node: &Server) {
    wait_for("an exact node", || {
        (node.metric("tidegate_store_exact") == 1
            && node.metric("tidegate_store_breaker_open") == 0)
            .then_some(())
    });
}

fn begins(line: &serde_json::Value, words: &str) -> bool {
    let message = line["message"].as_str();
    message.is_some_and(|message| message.starts_with(words))
}

/// A line to the store that can be disturbed.
pub(crate) struct StoreLink {
    proxy: FaultProxy,
    _runtime: Runtime,
}

impl StoreLink {
    pub(crate) fn to(store: SocketAddr) -> StoreLink {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let proxy = runtime.block_on(FaultProxy::new(store)).unwrap();
        StoreLink {
            proxy,
            _runtime: runtime,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    pub(crate) fn set(&self, fault: ProxyFault) {
        self.proxy.set(fault);
    }
}
