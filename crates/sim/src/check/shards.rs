//! A store of several parts: what goes wrong in one of them stays there.
//!
//! Where no limit is shared, each part is a store of its own, and so is the history of those who are
//! in it: it is judged as such. Where one is shared, the history is judged as a whole, and who is in
//! no way touched by the fault must not notice it.

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
    let cross_slot = (cross_slot > 0).then(|| format!("{cross_slot} calls spoke of several"));
    found("a call speaks of one slot", cross_slot);
    found("who is elsewhere stays exact", affected_elsewhere(case));
    let refunds = case.history.wide_refunds;
    let touched = case.scenario.fault == SimFault::None && refunds > 0;
    let touched = touched.then(|| format!("{refunds} refunds of the ceiling"));
    found("a refusal touches nothing wider", touched);
    let promise = "a part that takes over is told before it is believed";
    found(promise, unrestored(case));
}

/// A node that believed the part that took over, and had not told it of an entry in a log that it has
/// seen and that still counts. What is older than a heartbeat that was found is there.
fn unrestored(case: &CheckCase<'_>) -> Option<String> {
    let (scenario, history) = (case.scenario, case.history);
    let log = scenario.spec.algorithm == Algorithm::SlidingLog;
    if !log || scenario.fault != SimFault::Failover {
        return None;
    }
    (0..scenario.nodes).find_map(|node| {
        let events = history.events_of(scenario.hit_shard);
        let mut since = events.filter(|(at, of, _)| *of == node && *at >= scenario.fault_ends);
        let first =
            since.find(|(_, _, e)| matches!(e, StoreEvent::Exact | StoreEvent::Restored { .. }));
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

/// A decision that was local although all its counters are in parts that are well.
fn affected_elsewhere(case: &CheckCase<'_>) -> Option<String> {
    let scenario = case.scenario;
    if scenario.fault.hits_a_node() {
        return None; // a node that starts has to meet every part
    }
    let ceiling = scenario.subjects.len();
    let shared = scenario.ceiling.is_some() && case.is_hit(ceiling);
    let elsewhere = |r: &&DecisionRecord| !shared && !case.is_hit(r.subject);
    let mut records = case.history.records.iter().filter(elsewhere);
    // Of a shared limit, what a step before it left no time for is decided locally for a moment.
    let local = records.find(|r| !is_exact(r) && !case.is_after_late_step(r))?;
    Some(format!("{local:?}"))
}

/// What happened to those who are in one part, as if there were no other.
pub(super) fn single_shard(case: &CheckCase<'_>, shard: usize) -> (Scenario, History) {
    let (whole, history) = (case.scenario, case.history);
    let subjects = 0..whole.subjects.len();
    let here: Vec<usize> = subjects
        .filter(|subject| whole.shard_of(*subject) == shard)
        .collect();
    let fault = match shard == whole.hit_shard || whole.fault.hits_a_node() {
        true => whole.fault,
        false => SimFault::None,
    };
    let scenario = Scenario {
        subjects: here
            .iter()
            .map(|subject| whole.subjects[*subject])
            .collect(),
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
    let sent = history
        .charges_sent
        .iter()
        .filter(|sent| sent.shard == shard);
    let single = History {
        records: history.records.iter().filter_map(of).collect(),
        premature_denials: history.premature_denials.iter().filter_map(of).collect(),
        event_shards: vec![0; events.len()],
        events,
        charges_sent: sent
            .map(|sent| crate::model::SentCharge { shard: 0, ..*sent })
            .collect(),
        snapshots: history.snapshots.iter().map(snapshot_of).collect(),
        losses: match shard == whole.hit_shard {
            true => history.losses.clone(),
            false => Vec::new(),
        },
        deaths: history.deaths.clone(),
        unanswered: history.unanswered,
        pauses: history.pauses.clone(),
        ..History::default()
    };
    (scenario, single)
}

impl CheckCase<'_> {
    /// Whether what goes wrong concerns a counter.
    pub(super) fn is_hit(&self, counter: usize) -> bool {
        self.scenario.fault != SimFault::None
            && self.scenario.shard_of(counter) == self.scenario.hit_shard
    }

    /// Whether a limit is charged after one in the part that is hit, or may be.
    pub(super) fn is_charged_after_hit(&self, counter: usize) -> bool {
        counter == self.scenario.subjects.len() && self.scenario.fault != SimFault::None
    }

    /// A node whose shared limit had to be decided locally owes it for a moment.
    fn is_after_late_step(&self, record: &DecisionRecord) -> bool {
        let lately = record.sent.since(Nanos::from_millis(300));
        let mut records = self.history.records.iter();
        self.scenario.ceiling.is_some()
            && records.any(|r| {
                let local = r.is_local() && self.is_hit(r.subject);
                local && r.node == record.node && r.done >= lately && r.sent <= record.done
            })
    }

    /// How many admissions may be dated by another step of the same decision, on one side or the
    /// other of any edge.
    pub(super) fn jitter(&self, counter: usize) -> u64 {
        let (several, ahead) = (self.scenario.shards > 1, self.scenario.counts_ahead());
        if self.scenario.ceiling.is_none() || !(several || ahead) {
            return 0;
        }
        // On a single store, those of which one limit was decided at once and the other in vain.
        let stepwise = |r: &&DecisionRecord| several || r.is_local();
        let admitted = self
            .records_of(counter)
            .filter(|r| r.admitted)
            .filter(stepwise);
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
