//! Reservations: the used units keep the limit, each call is settled once, and unused units are refunded,
//! also without a settlement.
//!
//! The input is what clients know: estimates, used units and replies. [`super::reservation_oracle`] checks
//! the counters operation by operation.

use std::collections::BTreeMap;

use tidegate::Settlement;
use tidegate_core::algorithms::Limit;
use tidegate_core::invariants::{Admission, Violation, within_bound};
use tidegate_core::store::{OnStoreFailure, Settled, Source};
use tidegate_core::units::Nanos;

use super::bounds::{limit_plus_shares, scaled, segments, shares_limit};
use super::{BrokenPromise, CheckCase, reservation_oracle};
use crate::history::{ReservationCall, ReserveReply, SettleCall};
use crate::model::{OpKind, ReservationEvent, ReservationEventKind};
use crate::reservation_clients::RESERVATION_SWEEP_INTERVAL;
use crate::scenario::{ReservationWork, SimFault};

pub(super) fn judge(case: &CheckCase<'_>, of: ReservationWork, findings: &mut Vec<BrokenPromise>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    found("used units keep the limit", over_limit(case));
    found("a reservation is settled once", settled_twice(case));
    let mismatch = reservation_oracle::first_mismatch(case, of);
    found("every counter agrees with the oracle", mismatch);
    let promise = "an unsettled estimate is refunded when it expires";
    found(promise, not_returned(case));
    found("a settlement is answered in time", settled_late(case));
    found("an open reservation can be settled", not_settleable(case));
    let promise = "a refund ends a cached denial";
    found(promise, stale_denial(case));
    match of.max_used_in_long_window {
        Some(_) => found("the counters match the used units at the end", miscounted(case)),
        None => found("the whole limit is available at the end", not_all_available(case)),
    }
}

/// The reply to an admitted call.
fn admitted_reply(call: &ReservationCall) -> Option<&ReserveReply> {
    call.reply.as_ref().filter(|reply| reply.id.is_some())
}

/// The calls that are charged to a counter.
fn calls_of<'a>(case: &'a CheckCase<'_>, counter: usize) -> impl Iterator<Item = &'a ReservationCall> {
    let ceiling = counter == case.scenario.subjects.len();
    let calls = case.history.reservation_calls.iter();
    calls.filter(move |call| ceiling || call.subject == counter)
}

/// When an unsettled estimate may be refunded, as a client must assume.
fn expires_at(case: &CheckCase<'_>, call: &ReservationCall, reply: &ReserveReply) -> Nanos {
    let (fault, begins) = (case.scenario.fault, case.scenario.fault_begins);
    // The store measures the lifetime by its own clock, which may be fast or step ahead.
    let early = match fault {
        SimFault::Drift => Nanos::new(call.lasts.get() / 8),
        _ => Nanos::ZERO,
    };
    let expires_at = reply.done.plus(call.lasts.since(early)).since(case.budget());
    if fault.steps_clock() && reply.done <= begins { expires_at.min(begins) } else { expires_at }
}

/// The units charged at `now` for an admitted call, within its estimate: the whole estimate while the call is
/// in flight, the used units after its settlement. Zero for a call that is settled late or never: other calls
/// may use its estimate after the expiry, and its own used units come on top.
fn charged_at(case: &CheckCase<'_>, call: &ReservationCall, reply: &ReserveReply, now: Nanos) -> u64 {
    let expires_at = expires_at(case, call, reply);
    let settled = |settlement: &&SettleCall| match settlement.reply {
        Some((done, Settlement::Done)) => done <= now && done < expires_at,
        _ => false,
    };
    let unsettled = call.settlements.first().is_none_or(|settlement| settlement.sent > now);
    match call.settlements.iter().find(settled) {
        Some(_) => call.used.min(call.estimate),
        None if now >= expires_at => 0,
        None if unsettled => call.estimate,
        None => call.used.min(call.estimate), // its settlement is in flight
    }
}

/// The admitted calls of a counter with matching decisions, in the order of their replies.
fn admitted<'a>(
    case: &'a CheckCase<'_>,
    counter: usize,
    which: &dyn Fn(Source) -> bool,
) -> Vec<(&'a ReservationCall, &'a ReserveReply)> {
    let calls = calls_of(case, counter);
    let passed = calls.filter_map(|call| Some((call, admitted_reply(call)?)));
    let mut passed: Vec<_> = passed.filter(|(_, reply)| which(reply.source)).collect();
    passed.sort_by_key(|(_, reply)| reply.done);
    passed
}

/// The violation, if the charges at any moment exceed a limit plus `more`.
fn exceeds(
    case: &CheckCase<'_>,
    limit: &Limit,
    passed: &[(&ReservationCall, &ReserveReply)],
    more: u64,
) -> Option<Violation> {
    for (i, (_, newest)) in passed.iter().enumerate() {
        let charged = passed[..=i]
            .iter()
            .map(|(call, reply)| Admission { at: reply.at, units: charged_at(case, call, reply, newest.done) });
        let mut charged: Vec<Admission> = charged.filter(|one| one.units > 0).collect();
        let segments = segments(case, &mut charged);
        let violations = segments.iter().filter_map(|segment| within_bound(limit, segment).err());
        let mut over = violations.filter(|found| found.admitted > found.bound + more);
        if let Some(found) = over.next() {
            return Some(found);
        }
    }
    None
}

/// At any moment and in any interval, charges within estimates are at most the limit; those of nodes without
/// the store, their shares; both together, the sum. Units used beyond an estimate or settled late come on
/// top, as documented.
fn over_limit(case: &CheckCase<'_>) -> Option<String> {
    if case.scenario.fault == SimFault::FailoverSkewed {
        return over_limit_by_true_time(case);
    }
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let spec = case.scenario.spec(counter);
        let exact = admitted(case, counter, &|source| source == Source::Exact);
        let local = admitted(case, counter, &|source| source == Source::Fallback);
        let any = admitted(case, counter, &|_| true);
        let describe = |found: Violation| format!("counter {counter}: {found}");
        let check = |limit: &Limit, passed: &[(&ReservationCall, &ReserveReply)], slack| {
            exceeds(case, limit, passed, slack).map(describe)
        };
        if !case.scenario.fault.loses_counts()
            && let Some(over) = check(&case.scenario.promised_limit(counter), &exact, 0)
        {
            return Some(over);
        }
        if case.scenario.on_failure == OnStoreFailure::Deny {
            let first = local.first();
            return first.map(|(call, _)| format!("without the store: {call:?}"));
        }
        // Before the first membership, no node knows the store's time either.
        let shares_only = match case.scenario.fault {
            SimFault::LateStore => None,
            _ => check(&shares_limit(spec), &local, 0),
        };
        shares_only.or_else(|| check(&limit_plus_shares(spec), &any, lost_units(case, counter)))
    })
}

/// For clock steps that are too small for a state to show: one window more.
fn over_limit_by_true_time(case: &CheckCase<'_>) -> Option<String> {
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let max = scaled(case.scenario.spec(counter), 280, |capacity| 3 * capacity);
        let passed = admitted(case, counter, &|_| true);
        let used = passed
            .iter()
            .map(|(call, reply)| Admission { at: reply.done, units: charged_at(case, call, reply, Nanos::MAX) });
        let used: Vec<Admission> = used.filter(|one| one.units > 0).collect();
        let violation = within_bound(&max, &used).err()?;
        Some(format!("counter {counter}: {violation}"))
    })
}

/// Units that the store lost and no node can restore: those admitted between a loss and its detection, and
/// those reserved by a node that died with the store since any survivor last read the counter.
fn lost_units(case: &CheckCase<'_>, counter: usize) -> u64 {
    let history = case.history;
    let exact = |call: &&ReservationCall| admitted_reply(call).is_some_and(|reply| reply.source == Source::Exact);
    let mut lost = 0;
    for at in &history.losses {
        let until = match case.scenario.fault {
            SimFault::Flush | SimFault::Chaos => Nanos::from_millis(230),
            _ => case.budget(),
        };
        let near = |call: &&ReservationCall| {
            let done = admitted_reply(call).map_or(Nanos::ZERO, |reply| reply.done);
            *at <= done && done <= at.plus(until)
        };
        let calls = calls_of(case, counter).filter(exact).filter(near);
        lost += calls.map(|call| call.estimate).sum::<u64>();
    }
    if case.scenario.fault == SimFault::DeathWithStore {
        for (at, dead) in &history.deaths {
            let time = |call: &ReservationCall| {
                let reply = call.reply.as_ref().filter(|reply| reply.done <= *at);
                reply.map(|reply| reply.at)
            };
            let before = || calls_of(case, counter).filter(|call| time(call).is_some());
            let others = before().filter(|call| call.node != *dead);
            let seen = others.filter(exact).filter_map(time).max();
            let own = before().filter(|call| call.node == *dead).filter(exact);
            let unseen = own.filter(|call| time(call) > seen);
            lost += unseen.map(|call| call.estimate).sum::<u64>();
        }
    }
    lost
}

/// By the store's log: the used units are charged once, and the estimate is refunded at most once.
fn settled_twice(case: &CheckCase<'_>) -> Option<String> {
    // How often each reservation was settled with its used units, and how often it was refunded at its expiry.
    let mut corrected: BTreeMap<u128, (u32, u32)> = BTreeMap::new();
    let mut losses = case.history.losses.iter().peekable();
    for event in &case.history.reservation_events {
        while losses.next_if(|lost| **lost <= event.now).is_some() {
            corrected.clear(); // a settled reservation may be open again
        }
        let ReservationEventKind::Settled { id, used, settled, .. } = event.kind else {
            continue;
        };
        let (settled_count, returned_count) = corrected.entry(id).or_default();
        match (used, settled) {
            (Some(_), Settled::Done | Settled::Late) => *settled_count += 1,
            (None, Settled::Done) => *returned_count += 1,
            _ => continue,
        }
        let after_return = settled == Settled::Done && *settled_count > 0 && *returned_count > 0;
        if *settled_count > 1 || *returned_count > 1 || after_return {
            return Some(format!("{event:?}"));
        }
    }
    None
}

/// A live node refunds an unsettled reservation at its expiry, unless the next reservation of the same
/// counter did so before.
fn not_returned(case: &CheckCase<'_>) -> Option<String> {
    let events = &case.history.reservation_events;
    let slack = RESERVATION_SWEEP_INTERVAL.plus(Nanos::from_millis(200));
    for (i, event) in events.iter().enumerate() {
        let ReservationEventKind::Reserved { id, lasts, admitted: true } = event.kind else {
            continue;
        };
        let by = event.now.plus(lasts).plus(slack);
        if !is_calm(case, event, by) || !is_confirmed(case, id) {
            continue;
        }
        let touches = |other: &ReservationEvent| {
            let mut touched = other.changes.iter();
            touched.any(|one| event.changes.first().is_some_and(|own| own.counter == one.counter))
        };
        let mut later = events[i + 1..].iter().take_while(|later| later.now <= by);
        let ended = later.any(|later| match later.kind {
            ReservationEventKind::Settled { id: of, settled: Settled::Done | Settled::Late, .. } => of == id,
            ReservationEventKind::Reserved { .. } => touches(later) && later.at >= event.at.plus(lasts),
            _ => false,
        });
        if !ended {
            return Some(format!("{event:?} is open at {by}"));
        }
    }
    None
}

/// Whether the node received the reply to its reservation. After a late reply it settles the reservation with
/// zero, once.
fn is_confirmed(case: &CheckCase<'_>, id: u128) -> bool {
    let mut calls = case.history.reservation_calls.iter();
    calls.any(|call| admitted_reply(call).is_some_and(|reply| reply.id == Some(id) && reply.source == Source::Exact))
}

/// Whether neither a node nor the store has a fault from a reservation to `by`.
fn is_calm(case: &CheckCase<'_>, event: &ReservationEvent, by: Nanos) -> bool {
    let scenario = case.scenario;
    let hit = match scenario.fault {
        SimFault::None => false,
        SimFault::Drift => true,
        _ => event.now < case.recovered_at() && scenario.fault_begins < by,
    };
    let dies = |(at, node): &(Nanos, usize)| *node == event.node && event.now <= *at && *at <= by;
    !hit && by < scenario.ends && !case.history.deaths.iter().any(dies)
}

fn was_paused(case: &CheckCase<'_>, node: usize, from: Nanos, to: Nanos) -> bool {
    let mut pauses = case.history.pauses.iter();
    pauses.any(|(begins, ends, of)| *of == node && from <= *ends && to >= *begins)
}

/// A correction by the node takes two calls to the store, one after the other.
fn settled_late(case: &CheckCase<'_>) -> Option<String> {
    let settlements = case.history.reservation_calls.iter().flat_map(|call| &call.settlements);
    let max = case.follow_up_budget().plus(case.budget());
    for settlement in settlements {
        let done = settlement.reply.map(|(done, _)| done);
        let by = settlement.sent.plus(max);
        let died = |(at, node): &(Nanos, usize)| *node == settlement.node && settlement.sent <= *at;
        let excused = was_paused(case, settlement.node, settlement.sent, by)
            || by >= case.scenario.ends
            || (done.is_none() && case.history.deaths.iter().any(died));
        if !excused && done.is_none_or(|done| done > by) {
            return Some(format!("{settlement:?}"));
        }
    }
    None
}

/// The first settlement of a reservation in the store, if it is in time, is not rejected as settled before or
/// expired.
fn not_settleable(case: &CheckCase<'_>) -> Option<String> {
    if case.scenario.fault.loses_counts() || case.scenario.fault.steps_clock() {
        return None;
    }
    let drift = case.scenario.fault == SimFault::Drift;
    for call in &case.history.reservation_calls {
        let (Some(reply), Some(first)) = (admitted_reply(call), call.settlements.first()) else {
            continue;
        };
        let Some((done, settlement)) = first.reply else {
            continue;
        };
        let lasts = call.lasts.get();
        let over = Nanos::new(if drift { lasts * 9 / 5 } else { 2 * lasts });
        let second = call.settlements.get(1);
        let alone = second.is_none_or(|second| second.sent > done);
        let open = alone && reply.source == Source::Exact && done < call.sent.plus(over);
        if open && matches!(settlement, Settlement::Already | Settlement::Lapsed) {
            return Some(format!("{call:?}"));
        }
    }
    None
}

/// A deny cache denies only what the store denied to this node within a second, and only if the store has
/// refunded nothing since.
fn stale_denial(case: &CheckCase<'_>) -> Option<String> {
    if case.scenario.ceiling.is_some() {
        return None; // the record does not name the limit that denied
    }
    let second = Nanos::from_secs(1).plus(case.budget());
    for subject in 0..case.scenario.subjects.len() {
        let calls: Vec<&ReservationCall> = calls_of(case, subject).collect();
        let settled = calls.iter().flat_map(|call| {
            let back = call.used < call.estimate;
            call.settlements.iter().filter(move |_| back)
        });
        let settled: Vec<&SettleCall> = settled.collect();
        for (i, call) in calls.iter().enumerate() {
            let Some(reply) = &call.reply else { continue };
            if reply.source != Source::DenyCache {
                continue;
            }
            let here = settled.iter().filter(|settlement| settlement.node == call.node);
            let returned = here.filter_map(|settlement| match settlement.reply {
                Some((done, Settlement::Done)) if done < call.sent => Some(done),
                _ => None,
            });
            let since = returned.max().unwrap_or(Nanos::ZERO).max(call.sent.since(second));
            let denied = |earlier: &&&ReservationCall| {
                let denied = earlier.reply.as_ref().filter(|reply| reply.id.is_none());
                earlier.node == call.node
                    && denied.is_some_and(|reply| reply.source != Source::DenyCache && reply.done >= since)
            };
            // A request that was sent later may have an earlier reply.
            let near =
                calls[..i].iter().rev().take_while(|earlier| earlier.sent.plus(second).plus(second) >= call.sent);
            let after = calls[i..].iter().take_while(|later| later.sent <= reply.done);
            if !near.chain(after).any(|earlier| denied(&earlier)) {
                return Some(format!("{call:?}"));
            }
        }
    }
    None
}

/// After a rest in which everything has drained and been refunded, one call may use the whole limit.
fn not_all_available(case: &CheckCase<'_>) -> Option<String> {
    let look = case.scenario.final_check_at();
    let mut calls = case.history.reservation_calls.iter();
    let last = calls.find(|call| call.sent >= look)?;
    admitted_reply(last).is_none().then(|| format!("{last:?}"))
}

/// Where nothing drains and nothing is lost: the charged units at the end are the used units of all calls.
fn miscounted(case: &CheckCase<'_>) -> Option<String> {
    if case.scenario.fault.loses_counts() {
        return None;
    }
    let last = case.history.snapshots.last()?;
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let (mut least, mut max) = (0, 0);
        for call in calls_of(case, counter) {
            let (low, high) = charge_range(case, counter, call);
            (least, max) = (least + low, max + high);
        }
        max += charged_again(case, counter);
        let charged = last.used[counter];
        let wrong = charged < least || charged > max;
        wrong.then(|| format!("counter {counter}: {charged} charged, {least} to {max} used"))
    })
}

/// Units of write-backs that the store may have charged twice. A write-back has no id: if its reply does not
/// arrive, the node charges the units once more. Each such unit is in the log twice, the second time after the
/// first, by the same node.
fn charged_again(case: &CheckCase<'_>, counter: usize) -> u64 {
    let mut unacknowledged: BTreeMap<usize, u64> = BTreeMap::new();
    let mut again = 0;
    for event in &case.history.reservation_events {
        let ReservationEventKind::Charged { acknowledged } = event.kind else {
            continue;
        };
        let of_counter = event.changes.iter().filter(|change| change.counter == case.history.counters[counter]);
        let units: u64 = of_counter.map(|change| change.units).sum();
        let open = unacknowledged.entry(event.node).or_default();
        let repeated = units.min(*open);
        (again, *open) = (again + repeated, *open - repeated);
        *open += if acknowledged { 0 } else { units };
    }
    again
}

/// The maximum that may be charged for a call that its node holds by itself: the estimate, and what was used
/// beyond it. The refund of what was not used is sent once, and not at all to a store that is unavailable when the
/// reservation ends: the store has performed it, or it is lost.
fn max_held_by_node(case: &CheckCase<'_>, counter: usize, call: &ReservationCall, reply: &ReserveReply) -> u64 {
    let refunds = case.ops_of(counter).filter_map(|op| match op.kind {
        OpKind::Returned(units, charged) if op.node == call.node && charged == reply.at => Some((units, op.at)),
        _ => None,
    });
    let ends = reply.done.plus(call.lasts);
    let sweep = [0, 600, 1_200].map(|millis| ends.plus(Nanos::from_millis(millis)));
    let (mut refunded, mut is_lost) = (0, sweep.iter().any(|at| case.is_recovering(*at)));
    for (units, performed) in refunds {
        is_lost |= performed.is_none();
        refunded += if performed.is_some() { units } else { 0 };
    }
    let mut here = call.settlements.iter().filter(|settlement| settlement.node == call.node);
    let settled = here.find_map(|settlement| match settlement.reply?.1 {
        settled @ (Settlement::Done | Settlement::Late) => Some(settled),
        _ => None,
    });
    match settled {
        None if is_lost => call.estimate,
        None => 0,
        Some(Settlement::Late) if is_lost => call.estimate + call.used,
        Some(Settlement::Late) => call.used,
        Some(_) => call.estimate.max(call.used).saturating_sub(refunded),
    }
}

/// The maximum that may be charged for the same call, if the store holds it as well: its reply to the
/// reservation was late or lost, and another node settled what the store holds.
fn max_held_by_store(case: &CheckCase<'_>, call: &ReservationCall, reply: &ReserveReply) -> u64 {
    let settled = case.history.reservation_events.iter().any(|event| match event.kind {
        ReservationEventKind::Settled { id, used: Some(used), settled: Settled::Done | Settled::Late, .. } => {
            Some(id) == reply.id && used == call.used
        }
        _ => false,
    });
    if settled { call.used } else { 0 }
}

/// The minimum and maximum that may be charged for a call at the end.
fn charge_range(case: &CheckCase<'_>, counter: usize, call: &ReservationCall) -> (u64, u64) {
    let any = (0, call.estimate.max(call.used));
    let Some(reply) = &call.reply else {
        return any; // its node died
    };
    if reply.id.is_none() {
        return (0, 0);
    }
    if call.sent >= case.scenario.final_check_at() {
        return (call.estimate, call.estimate); // it is still open
    }
    let dies = |node: usize| {
        let mut deaths = case.history.deaths.iter();
        deaths.any(|(at, dead)| *dead == node && *at >= call.sent)
    };
    let exact = reply.source == Source::Exact;
    let max_local = || max_held_by_node(case, counter, call, reply) + max_held_by_store(case, call, reply);
    if call.settlements.is_empty() {
        return match (exact, dies(call.node)) {
            (true, _) => (0, 0),
            (false, true) => any,
            (false, false) => (0, max_local()),
        };
    }
    let replied_with = |what| {
        let mut replies = call.settlements.iter().filter_map(|settlement| settlement.reply);
        replies.any(|(_, settlement)| settlement == what)
    };
    if replied_with(Settlement::Done) || replied_with(Settlement::Late) {
        return if exact {
            (call.used, call.used)
        } else if dies(call.node) {
            any
        } else {
            (call.used, max_local())
        };
    }
    let plain = call.settlements.iter().all(|settlement| settlement.reply.is_some());
    if !plain {
        return any;
    }
    let waits_on = call.settlements.iter().all(|settlement| !dies(settlement.node));
    match (replied_with(Settlement::Waiting), replied_with(Settlement::Lapsed)) {
        (false, true) => (0, 0),
        // Retried, or too late: then the estimate is refunded.
        (true, _) if exact && waits_on => (0, call.used),
        _ => any,
    }
}
