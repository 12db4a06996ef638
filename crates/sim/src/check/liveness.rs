//! Liveness: every request is answered in time and by the right clock; the breaker opens and closes in turn,
//! and no charge is sent while it is open; decisions are exact again soon after a fault.

use tidegate::resilience::StoreEvent;
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase, is_exact};
use crate::history::DecisionRecord;
use crate::model::{OpKind, StoreOp};
use crate::scenario::{SimFault, Work};

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    found("every request is answered", unanswered(case));
    found("no decision exceeds its budget", over_budget(case));
    found("the store's clock decides", wrong_clock(case));
    for shard in 0..case.scenario.shards {
        found("a breaker opens and closes in turn", breaker_out_of_order(case, shard));
        found("no charge is sent while the breaker is open", called_while_open(case, shard));
    }
    found("decisions are exact soon after a recovery", not_exact(case));
    found("the deny cache denies only what the store would deny", premature_denial(case));
}

/// Whether a node detects that its store has lost counts.
pub(super) fn judge_loss_detection(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    findings.extend(
        unnoticed_loss(case)
            .map(|detail| BrokenPromise { promise: "a loss of counts is detected within 100 ms", detail }),
    );
}

fn unanswered(case: &CheckCase<'_>) -> Option<String> {
    let history = case.history;
    if let Some(error) = history.errors.first() {
        return Some(format!("{} failed, the first: {error}", history.errors.len()));
    }
    let done = history.records.len() as u64 + history.unanswered;
    let missing = history.requests.saturating_sub(done);
    (missing > 0).then(|| format!("{missing} of {} have no reply", history.requests))
}

fn overlaps_pause(case: &CheckCase<'_>, record: &DecisionRecord) -> bool {
    let mut pauses = case.history.pauses.iter();
    pauses.any(|(from, to, node)| *node == record.node && record.sent <= *to && record.done >= *from)
}

fn over_budget(case: &CheckCase<'_>) -> Option<String> {
    let mut records = case.history.records.iter();
    let late = records.find(|r| r.done.since(r.sent) > case.budget() && !overlaps_pause(case, r))?;
    Some(format!("{} at {late:?}", late.done.since(late.sent)))
}

/// Decisions carry the store's time: with the error of a round trip after a call to the store, and of half a
/// round trip without one.
fn wrong_clock(case: &CheckCase<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if fault.steps_clock() || matches!(fault, SimFault::Drift | SimFault::Pause | SimFault::Chaos) {
        return None;
    }
    let off = |record: &&DecisionRecord| {
        let gap = record.store_time_done.since(record.at).max(record.at.since(record.store_time_done));
        // A unit of a lease has the time of its charge, whatever else the request was charged for.
        let lasts = max_lease(case).max(max_staleness(case));
        gap > case.budget().plus(case.budget()).plus(lasts)
    };
    // A node that has never reached the store has only its own clock; a node that has reached one shard may
    // not have reached the next.
    let met = |record: &&DecisionRecord| {
        let mut events = case.history.events.iter();
        let died = case.history.deaths.iter().find(|(_, node)| *node == record.node);
        let since = died.map_or(Nanos::ZERO, |(at, _)| *at);
        events.any(|(at, node, event)| {
            let exact = *event == StoreEvent::Exact && *node == record.node;
            exact && *at >= since && *at <= record.done
        })
    };
    let meets_shards = fault == SimFault::NodeDeath && case.scenario.shards > 1;
    let mut records = case.history.records.iter();
    let wrong = records.find(|record| {
        let knew = met(record) && !meets_shards;
        off(record) && (knew || !is_local(record))
    })?;
    Some(format!("{wrong:?}"))
}

fn max_lease(case: &CheckCase<'_>) -> Nanos {
    let leases = case.counters().filter_map(|i| case.scenario.limit(i).lease_ttl());
    leases.max().unwrap_or(Nanos::ZERO)
}

/// Lenient counting continues from the last sync reply, which is no older than this.
fn max_staleness(case: &CheckCase<'_>) -> Nanos {
    let lenient = |i| case.scenario.counting(i) == Counting::Lenient;
    if case.counters().any(lenient) { Nanos::from_millis(50) } else { Nanos::ZERO }
}

fn is_local(record: &DecisionRecord) -> bool {
    record.is_local()
}

fn breaker_out_of_order(case: &CheckCase<'_>, shard: usize) -> Option<String> {
    for node in 0..case.scenario.nodes {
        let mut open = false;
        let events = case.history.events_of(shard);
        for (at, _, event) in events.filter(|(_, of, _)| *of == node) {
            match (event, open) {
                (StoreEvent::BreakerOpened { .. }, false) => open = true,
                (StoreEvent::BreakerClosed, true) => open = false,
                (StoreEvent::BreakerOpened { .. } | StoreEvent::BreakerClosed, _) => {
                    let dies = case.history.deaths.iter().any(|(_, dead)| *dead == node);
                    if !dies {
                        return Some(format!("node {node} at {at}: {event:?} again"));
                    }
                    open = matches!(event, StoreEvent::BreakerOpened { .. });
                }
                _ => {}
            }
        }
    }
    None
}

fn called_while_open(case: &CheckCase<'_>, shard: usize) -> Option<String> {
    let history = case.history;
    for node in 0..case.scenario.nodes {
        if history.deaths.iter().any(|(_, dead)| *dead == node) {
            continue;
        }
        let events = history.events_of(shard).filter(|(_, of, _)| *of == node);
        let changes = events.filter_map(|(at, _, event)| match event {
            StoreEvent::BreakerOpened { .. } => Some((*at, true)),
            StoreEvent::BreakerClosed => Some((*at, false)),
            _ => None,
        });
        let changes: Vec<(Nanos, bool)> = changes.collect();
        let sent = history.charges_sent.iter();
        let own = sent.filter(|sent| sent.node == node && sent.shard == shard);
        for sent in own {
            let before = changes.iter().take_while(|(at, _)| *at < sent.at);
            if before.last().is_some_and(|(_, open)| *open) && !changes.iter().any(|(at, _)| *at == sent.at) {
                return Some(format!("node {node} at {}", sent.at));
            }
        }
    }
    None
}

/// Not judged if a breaker opened twice: then the recovery rightly takes longer.
fn not_exact(case: &CheckCase<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if matches!(fault, SimFault::Pause | SimFault::Chaos | SimFault::Gray) {
        return None;
    }
    let opened = |node, shard| {
        let events = case.history.events_of(shard);
        let opened = events.filter(|(_, of, e)| *of == node && matches!(e, StoreEvent::BreakerOpened { .. }));
        opened.count()
    };
    let mut shards = 0..case.scenario.shards;
    if shards.any(|shard| (0..case.scenario.nodes).any(|node| opened(node, shard) > 1)) {
        return None;
    }
    let (from, recovered_at) = (case.scenario.fault_begins, case.recovered_at());
    let calm = |r: &&DecisionRecord| r.sent >= recovered_at || (r.done < from && fault != SimFault::NodeDeath);
    let mut records = case.history.records.iter().filter(calm);
    let local = records.find(|record| !is_exact(record))?;
    Some(format!("{local:?}"))
}

fn premature_denial(case: &CheckCase<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if case.scenario.work != Work::Checks {
        return None; // settlements elsewhere refund early; other promises cover that
    }
    let lenient = |counter| case.scenario.counting(counter) == Counting::Lenient;
    if case.counters().any(lenient) {
        // A node knows of its own admissions before the store does.
        return None;
    }
    if case.scenario.shards > 1 && case.scenario.ceiling.is_some() {
        // A charge for a request that a wider limit denies is refunded, and the deny caches that denied
        // meanwhile are not updated.
        return None;
    }
    let calm_until = match fault {
        // Not `Pause`: a charge that a paused node sent too late is refunded, and the deny cache is not
        // updated.
        SimFault::None | SimFault::NodeDeath => case.scenario.ends,
        SimFault::Drift => Nanos::ZERO,
        _ => case.scenario.fault_begins,
    };
    let mut premature = case.history.premature_denials.iter().filter(|r| r.done < calm_until);
    let premature = if case.scenario.counts_ahead() {
        premature.find(|record| !is_deny_cached(case, record))
    } else {
        premature.next()
    };
    Some(format!("{:?}", premature?))
}

/// With leases, a denial is held for up to 20 ms even if a unit arrives sooner, so that the store is left
/// alone while its counter is nearly used up. A refund by another node does not end a cached denial, which
/// lasts for at most a second.
fn is_deny_cached(case: &CheckCase<'_>, record: &DecisionRecord) -> bool {
    let since = |span| record.done.since(Nanos::from_millis(span)).since(case.budget());
    let denied = |r: &DecisionRecord| {
        let here = r.node == record.node && r.subject == record.subject;
        here && !r.admitted && r.source != Source::DenyCache
    };
    let earlier = case.history.records.partition_point(|r| r.done <= record.done);
    let earlier = case.history.records[..earlier].iter().rev();
    let mut lately = earlier.take_while(|r| r.done >= since(20));
    lately.any(denied)
        || store_did_recently(case, since(20), record, |entry| {
            // A draw of zero units is a denial, too.
            matches!(entry.kind, OpKind::Drawn(_)) && entry.node == record.node
        })
        || store_did_recently(case, since(1_000), record, |entry| matches!(entry.kind, OpKind::Returned(..)))
}

/// Whether the store performed such an operation between `from` and a decision.
fn store_did_recently(
    case: &CheckCase<'_>,
    from: Nanos,
    record: &DecisionRecord,
    matches: impl Fn(&StoreOp) -> bool,
) -> bool {
    let ops = &case.history.store_ops;
    // Operations are nearly in the order of sending: none is in flight for longer than this.
    let early = from.since(Nanos::from_secs(2));
    let first = ops.partition_point(|entry| entry.sent < early);
    let since = ops[first..].iter();
    let mut before = since.take_while(|entry| entry.sent.since(record.done) == Nanos::ZERO);
    before.any(|entry| entry.at.is_some() && from <= entry.sent && matches(entry))
}

/// Under load, some node detects within 100 ms that its store has lost counts.
fn unnoticed_loss(case: &CheckCase<'_>) -> Option<String> {
    // With several shards only one has lost counts, and a node with a lease need not call it.
    let elsewhere = case.scenario.shards > 1 || case.scenario.counts_ahead();
    if case.scenario.fault != SimFault::Flush || elsewhere {
        return None;
    }
    let lost = *case.history.losses.first()?;
    // Load: a subject was admitted recently and sends another request to the same node.
    let limit = case.scenario.limit(0);
    let under_load = (0..case.scenario.subjects.len()).any(|subject| {
        let recent = |from: Nanos, to: Nanos, node: Option<usize>| {
            let mut records = case.records_of(subject);
            let within = move |r: &&DecisionRecord| from <= r.done && r.done <= to;
            records.find(move |r| {
                within(r)
                    && node.is_none_or(|node| r.node == node)
                    && r.source == Source::Exact
                    && (r.admitted || r.done > lost)
                    && (r.sent >= lost || r.done <= lost)
            })
        };
        let half_interval = Nanos::new(limit.per().get() / limit.count().max(1) / 2);
        let before = recent(lost.since(half_interval), lost, None);
        let after = |node| recent(lost, lost.plus(Nanos::from_millis(60)), Some(node));
        before.is_some_and(|record| after(record.node).is_some())
    });
    let mut events = case.history.events.iter();
    let noticed = events.any(|(at, _, event)| {
        *event == StoreEvent::CountsLost && *at >= lost && *at <= lost.plus(Nanos::from_millis(100))
    });
    (under_load && !noticed).then(|| format!("lost at {lost}"))
}
