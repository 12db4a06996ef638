//! Random crashes while leases are outstanding: of nodes, of the store, of a node together with the store.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_fuzz_inputs::FuzzRng;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::Fleet;
use crate::history::{RequestHistory, RequestRecord, now};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CrashKind {
    Node,
    Store,
    Both,
}

/// One crash, until every node is exact again.
#[derive(Debug)]
pub(crate) struct CrashEvent {
    pub(crate) kind: CrashKind,
    node: usize,
    pub(crate) began: Nanos,
    /// When everything that crashed was running again.
    ended: Nanos,
    /// When every node was exact again.
    pub(crate) exact: Nanos,
}

impl CrashEvent {
    pub(crate) fn hits_store(&self) -> bool {
        self.kind != CrashKind::Node
    }

    /// Whether a request may have failed because of this crash: it was sent to the node that was down.
    pub(crate) fn explains_failure(&self, record: &RequestRecord) -> bool {
        let away = record.received >= self.began && record.sent <= self.ended;
        self.kind != CrashKind::Store && record.node == self.node && away
    }

    /// Whether the charge of an admission may be lost: the node that made it died together with the store, and no
    /// other node had a reply of the store since.
    pub(crate) fn is_lost_charge<'h>(
        &self,
        history: &'h RequestHistory,
        rule: &str,
    ) -> impl Fn(&RequestRecord) -> bool + use<'h> {
        let (dead, began, ended, both) = (self.node, self.began, self.ended, self.kind == CrashKind::Both);
        let replies = history.of_rule(rule);
        let replies = replies.filter(|r| r.exact() && r.node != dead && r.sent <= began);
        let last = replies.map(|record| record.sent).max().unwrap_or(Nanos::ZERO);
        move |record| both && record.node == dead && record.admitted() && record.received > last && record.sent <= ended
    }
}

/// A random schedule of crashes in which every kind occurs.
pub(crate) struct CrashSchedule {
    rng: FuzzRng,
    remaining: Vec<CrashKind>,
}

impl CrashSchedule {
    pub(crate) fn from_seed(seed: u64) -> CrashSchedule {
        CrashSchedule { rng: FuzzRng::of(seed, 0), remaining: Vec::new() }
    }

    /// A random duration from `from` to `to` milliseconds.
    pub(crate) fn millis(&mut self, from: usize, to: usize) -> Duration {
        let millis = from + self.rng.below(to - from);
        Duration::from_millis(millis as u64)
    }

    fn next_kind(&mut self) -> CrashKind {
        if self.remaining.is_empty() {
            self.remaining = vec![CrashKind::Node, CrashKind::Node, CrashKind::Store, CrashKind::Both];
        }
        let at = self.rng.below(self.remaining.len());
        self.remaining.swap_remove(at)
    }
}

/// Crashes something, restarts it after a while, and waits until every node is exact again.
pub(crate) fn crash(store: &mut Redis, fleet: &mut Fleet, schedule: &mut CrashSchedule) -> CrashEvent {
    let (kind, node) = (schedule.next_kind(), schedule.rng.below(fleet.nodes.len()));
    let away = schedule.millis(0, 1_500);
    let began = now();
    if kind != CrashKind::Node {
        store.kill();
    }
    if kind != CrashKind::Store {
        fleet.kill(node);
    }
    std::thread::sleep(away);
    if kind != CrashKind::Node {
        store.restart();
    }
    if kind != CrashKind::Store {
        fleet.restart(node);
    }
    let ended = now();
    fleet.wait_exact();
    CrashEvent { kind, node, began, ended, exact: now() }
}
