//! Shards: a fault of one shard stays there.
//!
//! Without a shared limit, each shard is a store of its own, and the history of its subjects is judged as
//! one. With a shared limit, the history is judged as a whole, and subjects that the fault does not touch
//! must stay exact.

use tidegate::resilience::StoreEvent;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase, is_exact};
use crate::history::{DecisionRecord, History, StoreSnapshot};
use crate::scenario::{Scenario, SimFault};

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    let cross_slot = case.history.cross_slot_calls;
    let cross_slot = (cross_slot > 0).then(|| format!("{cross_slot} calls named several"));
    found("a call names one hash slot", cross_slot);
    found("counters on healthy shards stay exact", affected_elsewhere(case));
    let refunds = case.history.wide_refunds;
    let touched = case.scenario.fault == SimFault::None && refunds > 0;
    let touched = touched.then(|| format!("{refunds} refunds of the ceiling"));
    found("a denial charges nothing wider", touched);
    let promise = "a promoted shard is restored before it is trusted";
    found(promise, unrestored(case));
}

/// A node that trusted a promoted shard without restoring an entry of a log that the node has seen and that
/// still counts. Entries older than a found heartbeat are in the replica's data.
fn unrestored(case: &CheckCase<'_>) -> Option<String> {
    let (scenario, history) = (case.scenario, case.history);
    let log = scenario.spec.algorithm == Algorithm::SlidingLog;
    if !log || scenario.fault != SimFault::Failover {
        return None;
    }
    (0..scenario.nodes).find_map(|node| {
        let events = history.events_of(scenario.hit_shard);
        let mut since = events.filter(|(at, of, _)| *of == node && *at >= scenario.fault_ends);
        let first = since.find(|(_, _, e)| matches!(e, StoreEvent::Exact | StoreEvent::Restored { .. }));
        let (trusted_at, _, event) = first?;
        let counts = |r: &DecisionRecord| {
            let exact = r.source == Source::Exact && r.admitted && r.node == node;
            let lasts = r.done.plus(scenario.spec.window.length());
            let may_be_lost = r.at >= history.found_heartbeat && r.done < scenario.fault_ends;
            exact && case.is_hit(r.subject) && may_be_lost && lasts > *trusted_at
        };
        let remembers = history.records.iter().any(counts);
        let unrestored = remembers && *event == StoreEvent::Exact;
        unrestored.then(|| format!("node {node} at {trusted_at}"))
    })
}

/// A local decision although all its counters are on healthy shards.
fn affected_elsewhere(case: &CheckCase<'_>) -> Option<String> {
    let scenario = case.scenario;
    if scenario.fault.hits_a_node() {
        return None; // a starting node has to discover every shard
    }
    let ceiling = scenario.subjects.len();
    let shared = scenario.ceiling.is_some() && case.is_hit(ceiling);
    let elsewhere = |r: &&DecisionRecord| !shared && !case.is_hit(r.subject);
    let mut records = case.history.records.iter().filter(elsewhere);
    // A shared limit is decided locally for a moment if an earlier step used up the budget.
    let local = records.find(|r| !is_exact(r) && !case.is_after_late_step(r))?;
    Some(format!("{local:?}"))
}

/// The history of the subjects of one shard, as if there were no other shard.
pub(super) fn single_shard(case: &CheckCase<'_>, shard: usize) -> (Scenario, History) {
    let (whole, history) = (case.scenario, case.history);
    let subjects = 0..whole.subjects.len();
    let here: Vec<usize> = subjects.filter(|subject| whole.shard_of(*subject) == shard).collect();
    let fault = if shard == whole.hit_shard || whole.fault.hits_a_node() { whole.fault } else { SimFault::None };
    let scenario = Scenario {
        subjects: here.iter().map(|subject| whole.subjects[*subject]).collect(),
        fault,
        shards: 1,
        hit_shard: 0,
        counter_shards: Vec::new(),
        ..whole.clone()
    };
    let index_of = |subject: usize| here.iter().position(|here| *here == subject);
    let of = |record: &DecisionRecord| {
        let subject = index_of(record.subject)?;
        Some(DecisionRecord { subject, ..*record })
    };
    let snapshot_of = |snapshot: &StoreSnapshot| StoreSnapshot {
        at: snapshot.at,
        store_time: snapshot.store_times[shard],
        store_times: vec![snapshot.store_times[shard]],
        used: here.iter().map(|subject| snapshot.used[*subject]).collect(),
    };
    let events: Vec<_> = history.events_of(shard).cloned().collect();
    let sent = history.charges_sent.iter().filter(|sent| sent.shard == shard);
    let single = History {
        records: history.records.iter().filter_map(of).collect(),
        premature_denials: history.premature_denials.iter().filter_map(of).collect(),
        event_shards: vec![0; events.len()],
        events,
        charges_sent: sent.map(|sent| crate::model::LinkCharge { shard: 0, ..*sent }).collect(),
        snapshots: history.snapshots.iter().map(snapshot_of).collect(),
        losses: if shard == whole.hit_shard { history.losses.clone() } else { Vec::new() },
        deaths: history.deaths.clone(),
        unanswered: history.unanswered,
        pauses: history.pauses.clone(),
        ..History::default()
    };
    (scenario, single)
}

impl CheckCase<'_> {
    /// Whether the fault affects a counter.
    pub(super) fn is_hit(&self, counter: usize) -> bool {
        self.scenario.fault != SimFault::None && self.scenario.shard_of(counter) == self.scenario.hit_shard
    }

    /// Whether a limit is charged after a limit on the hit shard, or may be.
    pub(super) fn is_charged_after_hit(&self, counter: usize) -> bool {
        counter == self.scenario.subjects.len() && self.scenario.fault != SimFault::None
    }

    /// A node whose shared limit was decided locally has pending units for a moment.
    fn is_after_late_step(&self, record: &DecisionRecord) -> bool {
        let lately = record.sent.since(Nanos::from_millis(300));
        let mut records = self.history.records.iter();
        self.scenario.ceiling.is_some()
            && records.any(|r| {
                let local = r.is_local() && self.is_hit(r.subject);
                local && r.node == record.node && r.done >= lately && r.sent <= record.done
            })
    }

    /// The number of admissions that may carry the time of another step of the same decision, and so fall on
    /// the wrong side of a boundary.
    pub(super) fn jitter(&self, counter: usize) -> u64 {
        let (several, ahead) = (self.scenario.shards > 1, self.scenario.counts_ahead());
        if self.scenario.ceiling.is_none() || !(several || ahead) {
            return 0;
        }
        // On a single store: those in which one limit was decided at once and the other timed out.
        let stepwise = |r: &&DecisionRecord| several || r.is_local();
        let admitted = self.records_of(counter).filter(|r| r.admitted).filter(stepwise);
        let mut times: Vec<Nanos> = admitted.map(|r| r.at).collect();
        times.sort_unstable();
        let mut from = 0;
        let near = |(i, at): (usize, &Nanos)| {
            while at.since(times[from]) > self.budget() {
                from += 1;
            }
            (i + 1 - from) as u64
        };
        times.iter().enumerate().map(near).max().unwrap_or(0)
    }
}
