//! A store of several parts: what goes wrong in one of them stays there.
//!
//! Where no limit is shared, each part is a store of its own, and so is the history of those who are
//! in it: it is judged as such. Where one is shared, the history is judged as a whole, and who is in
//! no way touched by the fault must not notice it.

use tidegate::resilience::Event;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use super::{Case, Finding, is_exact};
use crate::history::{History, Record, Snapshot};
use crate::scenario::{Fault, Scenario};

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    let crossed = case.history.crossed;
    let crossed = (crossed > 0).then(|| format!("{crossed} calls spoke of several"));
    found("a call speaks of one slot", crossed);
    found("who is elsewhere stays exact", disturbed(case));
    let refunds = case.history.wide_refunds;
    let touched = case.scenario.fault == Fault::None && refunds > 0;
    let touched = touched.then(|| format!("{refunds} refunds of the ceiling"));
    found("a refusal touches nothing wider", touched);
    let promise = "a part that takes over is told before it is believed";
    found(promise, untold(case));
}

/// A node that believed the part that took over, and had not told it of an entry in a log that it has
/// seen and that still counts. What is older than a heartbeat that was found is there.
fn untold(case: &Case<'_>) -> Option<String> {
    let (scenario, history) = (case.scenario, case.history);
    let log = scenario.spec.algorithm == Algorithm::SlidingLog;
    if !log || scenario.fault != Fault::Failover {
        return None;
    }
    (0..scenario.nodes).find_map(|node| {
        let events = history.events_of(scenario.hit);
        let mut since = events.filter(|(at, of, _)| *of == node && *at >= scenario.clears);
        let first = since.find(|(_, _, e)| matches!(e, Event::Exact | Event::Seeded { .. }));
        let (believed, _, event) = first?;
        let counts = |r: &Record| {
            let exact = r.source == Source::Exact && r.admitted && r.node == node;
            let lasts = r.done.plus(scenario.spec.window.length());
            let may_be_lost = r.at >= history.found_heartbeat && r.done < scenario.clears;
            exact && case.hits(r.subject) && may_be_lost && lasts > *believed
        };
        let remembers = history.records.iter().any(counts);
        let untold = remembers && *event == Event::Exact;
        untold.then(|| format!("node {node} at {believed}"))
    })
}

/// A decision that was local although all its counters are in parts that are well.
fn disturbed(case: &Case<'_>) -> Option<String> {
    let scenario = case.scenario;
    if scenario.fault.hits_a_node() {
        return None; // a node that starts has to meet every part
    }
    let ceiling = scenario.subjects.len();
    let shared = scenario.ceiling.is_some() && case.hits(ceiling);
    let elsewhere = |r: &&Record| !shared && !case.hits(r.subject);
    let mut records = case.history.records.iter().filter(elsewhere);
    // Of a shared limit, what a step before it left no time for is decided locally for a moment.
    let local = records.find(|r| !is_exact(r) && !case.behind_a_late_step(r))?;
    Some(format!("{local:?}"))
}

/// What happened to those who are in one part, as if there were no other.
pub(super) fn alone(case: &Case<'_>, line: usize) -> (Scenario, History) {
    let (whole, history) = (case.scenario, case.history);
    let subjects = 0..whole.subjects.len();
    let here: Vec<usize> = subjects
        .filter(|subject| whole.home(*subject) == line)
        .collect();
    let fault = match line == whole.hit || whole.fault.hits_a_node() {
        true => whole.fault,
        false => Fault::None,
    };
    let scenario = Scenario {
        subjects: here
            .iter()
            .map(|subject| whole.subjects[*subject])
            .collect(),
        fault,
        parts: 1,
        hit: 0,
        homes: Vec::new(),
        ..whole.clone()
    };
    let place = |subject: usize| here.iter().position(|here| *here == subject);
    let of = |record: &Record| {
        let subject = place(record.subject)?;
        Some(Record { subject, ..*record })
    };
    let books = |snapshot: &Snapshot| Snapshot {
        at: snapshot.at,
        truth: snapshot.truths[line],
        truths: vec![snapshot.truths[line]],
        used: here.iter().map(|subject| snapshot.used[*subject]).collect(),
    };
    let events: Vec<_> = history.events_of(line).cloned().collect();
    let sent = history.sent.iter().filter(|sent| sent.line == line);
    let alone = History {
        records: history.records.iter().filter_map(of).collect(),
        hasty: history.hasty.iter().filter_map(of).collect(),
        lines: vec![0; events.len()],
        events,
        sent: sent
            .map(|sent| crate::model::Sent { line: 0, ..*sent })
            .collect(),
        snapshots: history.snapshots.iter().map(books).collect(),
        losses: match line == whole.hit {
            true => history.losses.clone(),
            false => Vec::new(),
        },
        deaths: history.deaths.clone(),
        died: history.died,
        pauses: history.pauses.clone(),
        ..History::default()
    };
    (scenario, alone)
}

impl Case<'_> {
    /// Whether what goes wrong concerns a counter.
    pub(super) fn hits(&self, counter: usize) -> bool {
        self.scenario.fault != Fault::None && self.scenario.home(counter) == self.scenario.hit
    }

    /// Whether a limit is charged after one in the part that is hit, or may be.
    pub(super) fn behind_the_hit(&self, counter: usize) -> bool {
        counter == self.scenario.subjects.len() && self.scenario.fault != Fault::None
    }

    /// A node whose shared limit had to be decided locally owes it for a moment.
    fn behind_a_late_step(&self, record: &Record) -> bool {
        let lately = record.sent.since(Nanos::from_millis(300));
        let mut records = self.history.records.iter();
        self.scenario.ceiling.is_some()
            && records.any(|r| {
                let local = r.is_local() && self.hits(r.subject);
                local && r.node == record.node && r.done >= lately && r.sent <= record.done
            })
    }

    /// How many admissions may be dated by another step of the same decision, on one side or the
    /// other of any edge.
    pub(super) fn jitter(&self, counter: usize) -> u64 {
        let (several, ahead) = (self.scenario.parts > 1, self.scenario.counts_ahead());
        if self.scenario.ceiling.is_none() || !(several || ahead) {
            return 0;
        }
        // On a single store, those of which one limit was decided at once and the other in vain.
        let stepwise = |r: &&Record| several || r.is_local();
        let admitted = self.of(counter).filter(|r| r.admitted).filter(stepwise);
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
