//! Costs known only at the end: what calls used keeps the limit, each is settled once, and whatever was not
//! used comes back, also if nobody says so.
//!
//! What is judged is what clients know: what they estimated, used and were told. What it must have done to
//! the counters is judged step by step in [`super::estimates`].

use std::collections::BTreeMap;

use tidegate::Settlement;
use tidegate_core::algorithms::Limit;
use tidegate_core::invariants::{Admission, Violation, within_bound};
use tidegate_core::store::{OnStoreFailure, Settled, Source};
use tidegate_core::units::Nanos;

use super::bounds::{parts, scaled, share, whole_and_share};
use super::{Case, Finding, estimates};
use crate::calls::TEND_EVERY;
use crate::history::{Call, Reply, Settling};
use crate::model::{Posting, Step};
use crate::scenario::{Estimates, Fault};

pub(super) fn judge(case: &Case<'_>, of: Estimates, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    found("what is used keeps the limit", over(case));
    found("a reservation is settled once", settled_twice(case));
    let astray = estimates::astray(case, of);
    found("what is charged is what was used", astray);
    let promise = "an estimate comes back by itself at its end";
    found(promise, left_behind(case));
    found("a settlement is answered in time", settled_late(case));
    found("what is open is found", not_found(case));
    let promise = "a settlement ends a remembered refusal";
    found(promise, stale_refusal(case));
    match of.lasting {
        Some(_) => found("in the end the books show what was used", miscounted(case)),
        None => found("in the end all of it can be had", not_all_there(case)),
    }
}

/// The answer to a call that may pass.
fn passed(call: &Call) -> Option<&Reply> {
    call.reply.as_ref().filter(|reply| reply.id.is_some())
}

/// The calls that a counter is charged for.
fn calls_of<'a>(case: &'a Case<'_>, counter: usize) -> impl Iterator<Item = &'a Call> {
    let ceiling = counter == case.scenario.subjects.len();
    let calls = case.history.calls.iter();
    calls.filter(move |call| ceiling || call.subject == counter)
}

/// When an estimate may come back because nobody settled it, as a client must reckon.
fn until(case: &Case<'_>, call: &Call, reply: &Reply) -> Nanos {
    let (fault, begins) = (case.scenario.fault, case.scenario.begins);
    // The store measures a life by its own clock, which may be fast, or be set ahead.
    let early = match fault {
        Fault::Drift => Nanos::new(call.lasts.get() / 8),
        _ => Nanos::ZERO,
    };
    let until = reply
        .done
        .plus(call.lasts.since(early))
        .since(case.budget());
    match fault.steps_clock() && reply.done <= begins {
        true => until.min(begins),
        false => until,
    }
}

/// What is charged at `now` for a call that may pass, within its estimate: all of it while the call is under
/// way, what was used once it is settled. Nothing of one that is settled late or never: others may use its
/// estimate from its end on, and what it used itself comes on top.
fn charged_at(case: &Case<'_>, call: &Call, reply: &Reply, now: Nanos) -> u64 {
    let until = until(case, call, reply);
    let settled = |said: &&Settling| match said.answer {
        Some((done, Settlement::Done)) => done <= now && done < until,
        _ => false,
    };
    let unsaid = call.settlements.first().is_none_or(|said| said.sent > now);
    match call.settlements.iter().find(settled) {
        Some(_) => call.used.min(call.estimate),
        None if now >= until => 0,
        None if unsaid => call.estimate,
        None => call.used.min(call.estimate), // it is being settled
    }
}

/// The calls of a counter that may pass by such decisions, in the order they were answered.
fn admitted<'a>(
    case: &'a Case<'_>,
    counter: usize,
    which: &dyn Fn(Source) -> bool,
) -> Vec<(&'a Call, &'a Reply)> {
    let calls = calls_of(case, counter);
    let passed = calls.filter_map(|call| Some((call, passed(call)?)));
    let mut passed: Vec<_> = passed.filter(|(_, reply)| which(reply.source)).collect();
    passed.sort_by_key(|(_, reply)| reply.done);
    passed
}

/// How what was charged at any moment exceeds a limit and so much more, if it does.
fn exceeds(
    case: &Case<'_>,
    limit: &Limit,
    passed: &[(&Call, &Reply)],
    more: u64,
) -> Option<Violation> {
    for (i, (_, newest)) in passed.iter().enumerate() {
        let charged = passed[..=i].iter().map(|(call, reply)| Admission {
            at: reply.at,
            units: charged_at(case, call, reply, newest.done),
        });
        let mut charged: Vec<Admission> = charged.filter(|one| one.units > 0).collect();
        let parts = parts(case, &mut charged);
        let violations = parts
            .iter()
            .filter_map(|part| within_bound(limit, part).err());
        let mut over = violations.filter(|found| found.admitted > found.bound + more);
        if let Some(found) = over.next() {
            return Some(found);
        }
    }
    None
}

/// At any moment and in any interval, what is charged within estimates is at most what the limit allows; by
/// nodes without the store, their share; by both, both. What was used beyond an estimate, or settled late,
/// comes on top, as the documents say.
fn over(case: &Case<'_>) -> Option<String> {
    if case.scenario.fault == Fault::FailoverSkewed {
        return over_by_true_time(case);
    }
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let spec = case.scenario.spec(counter);
        let exact = admitted(case, counter, &|source| source == Source::Exact);
        let local = admitted(case, counter, &|source| source == Source::Fallback);
        let any = admitted(case, counter, &|_| true);
        let told = |found: Violation| format!("counter {counter}: {found}");
        let check = |limit: &Limit, passed: &[(&Call, &Reply)], more| {
            exceeds(case, limit, passed, more).map(told)
        };
        if !case.scenario.fault.loses_counts()
            && let Some(over) = check(&case.scenario.promise(counter), &exact, 0)
        {
            return Some(over);
        }
        if case.scenario.on_failure == OnStoreFailure::Deny {
            let first = local.first();
            return first.map(|(call, _)| format!("without the store: {call:?}"));
        }
        // Before anybody knows who is there, nobody knows the store's time either.
        let alone = match case.scenario.fault {
            Fault::LateStore => None,
            _ => check(&share(spec), &local, 0),
        };
        alone.or_else(|| check(&whole_and_share(spec), &any, lost(case, counter)))
    })
}

/// Where the clock itself jumps by less than states can tell: one window more.
fn over_by_true_time(case: &Case<'_>) -> Option<String> {
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let most = scaled(case.scenario.spec(counter), 280, |capacity| 3 * capacity);
        let passed = admitted(case, counter, &|_| true);
        let used = passed.iter().map(|(call, reply)| Admission {
            at: reply.done,
            units: charged_at(case, call, reply, Nanos::MAX),
        });
        let used: Vec<Admission> = used.filter(|one| one.units > 0).collect();
        let violation = within_bound(&most, &used).err()?;
        Some(format!("counter {counter}: {violation}"))
    })
}

/// What the store forgot and nobody can remember: what was admitted between a loss and its notice, and what
/// a node that died with it had reserved since any survivor last looked.
fn lost(case: &Case<'_>, counter: usize) -> u64 {
    let history = case.history;
    let exact = |call: &&Call| passed(call).is_some_and(|reply| reply.source == Source::Exact);
    let mut lost = 0;
    for at in &history.losses {
        let until = match case.scenario.fault {
            Fault::Flush | Fault::Chaos => Nanos::from_millis(230),
            _ => case.budget(),
        };
        let near = |call: &&Call| {
            let done = passed(call).map_or(Nanos::ZERO, |reply| reply.done);
            *at <= done && done <= at.plus(until)
        };
        let calls = calls_of(case, counter).filter(exact).filter(near);
        lost += calls.map(|call| call.estimate).sum::<u64>();
    }
    if case.scenario.fault == Fault::DeathWithStore {
        for (at, dead) in &history.deaths {
            let time = |call: &Call| {
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

/// By the books of the store: what was used is charged once, and the estimate comes back once at most.
fn settled_twice(case: &Case<'_>) -> Option<String> {
    // How often each was corrected to what was used, and to nothing because nobody said.
    let mut corrected: BTreeMap<u128, (u32, u32)> = BTreeMap::new();
    let mut losses = case.history.losses.iter().peekable();
    for posting in &case.history.postings {
        while losses.next_if(|lost| **lost <= posting.now).is_some() {
            corrected.clear(); // and what was settled may be open again
        }
        let Step::Settled {
            id, used, settled, ..
        } = posting.step
        else {
            continue;
        };
        let (said, unsaid) = corrected.entry(id).or_default();
        match (used, settled) {
            (Some(_), Settled::Done | Settled::Late) => *said += 1,
            (None, Settled::Done) => *unsaid += 1,
            _ => continue,
        }
        let after_return = settled == Settled::Done && *said > 0 && *unsaid > 0;
        if *said > 1 || *unsaid > 1 || after_return {
            return Some(format!("{posting:?}"));
        }
    }
    None
}

/// A node that lives gives back at its end what was reserved there and nobody settled, unless the next
/// reservation of the same counter did so before.
fn left_behind(case: &Case<'_>) -> Option<String> {
    let postings = &case.history.postings;
    let slack = TEND_EVERY.plus(Nanos::from_millis(200));
    for (i, posting) in postings.iter().enumerate() {
        let Step::Reserved {
            id,
            lasts,
            admitted: true,
        } = posting.step
        else {
            continue;
        };
        let by = posting.now.plus(lasts).plus(slack);
        if !calm(case, posting, by) || !heard_of(case, id) {
            continue;
        }
        let touches = |other: &Posting| {
            let mut touched = other.touched.iter();
            touched.any(|one| {
                posting
                    .touched
                    .first()
                    .is_some_and(|own| own.counter == one.counter)
            })
        };
        let mut later = postings[i + 1..].iter().take_while(|later| later.now <= by);
        let ended = later.any(|later| match later.step {
            Step::Settled {
                id: of,
                settled: Settled::Done | Settled::Late,
                ..
            } => of == id,
            Step::Reserved { .. } => touches(later) && later.at >= posting.at.plus(lasts),
            _ => false,
        });
        if !ended {
            return Some(format!("{posting:?} is open at {by}"));
        }
    }
    None
}

/// Whether the node that reserved knows so: a late answer it settles with nothing, once.
fn heard_of(case: &Case<'_>, id: u128) -> bool {
    let mut calls = case.history.calls.iter();
    calls.any(|call| {
        passed(call).is_some_and(|reply| reply.id == Some(id) && reply.source == Source::Exact)
    })
}

/// Whether nothing happens to a node or the store from a reservation to `by`.
fn calm(case: &Case<'_>, posting: &Posting, by: Nanos) -> bool {
    let scenario = case.scenario;
    let hit = match scenario.fault {
        Fault::None => false,
        Fault::Drift => true,
        _ => posting.now < case.settled() && scenario.begins < by,
    };
    let dies =
        |(at, node): &(Nanos, usize)| *node == posting.node && posting.now <= *at && *at <= by;
    !hit && by < scenario.ends && !case.history.deaths.iter().any(dies)
}

fn stopped(case: &Case<'_>, node: usize, from: Nanos, to: Nanos) -> bool {
    let mut pauses = case.history.pauses.iter();
    pauses.any(|(begins, ends, of)| *of == node && from <= *ends && to >= *begins)
}

/// To be corrected here takes two calls of the store, one after the other.
fn settled_late(case: &Case<'_>) -> Option<String> {
    let said = case.history.calls.iter().flat_map(|call| &call.settlements);
    let most = case.follow_up_budget().plus(case.budget());
    for said in said {
        let done = said.answer.map(|(done, _)| done);
        let by = said.sent.plus(most);
        let died = |(at, node): &(Nanos, usize)| *node == said.node && said.sent <= *at;
        let excused = stopped(case, said.node, said.sent, by)
            || by >= case.scenario.ends
            || (done.is_none() && case.history.deaths.iter().any(died));
        if !excused && done.is_none_or(|done| done > by) {
            return Some(format!("{said:?}"));
        }
    }
    None
}

/// Who settles for the first time what the store reserved, and soon enough, is not told that it was done
/// before or is over.
fn not_found(case: &Case<'_>) -> Option<String> {
    if case.scenario.fault.loses_counts() || case.scenario.fault.steps_clock() {
        return None;
    }
    let drift = case.scenario.fault == Fault::Drift;
    for call in &case.history.calls {
        let (Some(reply), Some(first)) = (passed(call), call.settlements.first()) else {
            continue;
        };
        let Some((done, settlement)) = first.answer else {
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

/// A node refuses by what it remembers only what the store refused there within a second, and since then it
/// has given nothing back.
fn stale_refusal(case: &Case<'_>) -> Option<String> {
    if case.scenario.ceiling.is_some() {
        return None; // which of two limits refused is not told
    }
    let second = Nanos::from_secs(1).plus(case.budget());
    for subject in 0..case.scenario.subjects.len() {
        let calls: Vec<&Call> = calls_of(case, subject).collect();
        let settled = calls.iter().flat_map(|call| {
            let back = call.used < call.estimate;
            call.settlements.iter().filter(move |_| back)
        });
        let settled: Vec<&Settling> = settled.collect();
        for (i, call) in calls.iter().enumerate() {
            let Some(reply) = &call.reply else { continue };
            if reply.source != Source::DenyCache {
                continue;
            }
            let here = settled.iter().filter(|said| said.node == call.node);
            let returned = here.filter_map(|said| match said.answer {
                Some((done, Settlement::Done)) if done < call.sent => Some(done),
                _ => None,
            });
            let since = returned
                .max()
                .unwrap_or(Nanos::ZERO)
                .max(call.sent.since(second));
            let refused = |earlier: &&&Call| {
                let refused = earlier.reply.as_ref().filter(|reply| reply.id.is_none());
                earlier.node == call.node
                    && refused.is_some_and(|reply| {
                        reply.source != Source::DenyCache && reply.done >= since
                    })
            };
            // Whoever was asked later may have been answered before.
            let near = calls[..i]
                .iter()
                .rev()
                .take_while(|earlier| earlier.sent.plus(second).plus(second) >= call.sent);
            let after = calls[i..]
                .iter()
                .take_while(|later| later.sent <= reply.done);
            if !near.chain(after).any(|earlier| refused(&earlier)) {
                return Some(format!("{call:?}"));
            }
        }
    }
    None
}

/// After a rest in which all has drained and come back, one call may have all of it.
fn not_all_there(case: &Case<'_>) -> Option<String> {
    let look = case.scenario.last_look();
    let mut calls = case.history.calls.iter();
    let last = calls.find(|call| call.sent >= look)?;
    passed(last).is_none().then(|| format!("{last:?}"))
}

/// Where nothing drains and nothing is lost: what is charged in the end is what all calls used.
fn miscounted(case: &Case<'_>) -> Option<String> {
    if case.scenario.fault.loses_counts() {
        return None;
    }
    let last = case.history.snapshots.last()?;
    let mut counters = 0..case.scenario.counters();
    counters.find_map(|counter| {
        let (mut least, mut most) = (0, 0);
        for call in calls_of(case, counter) {
            let (low, high) = charged_for(case, call);
            (least, most) = (least + low, most + high);
        }
        let charged = last.used[counter];
        let wrong = charged < least || charged > most;
        wrong.then(|| format!("counter {counter}: {charged}, of {least} to {most} that were used"))
    })
}

/// What may be charged for a call in the end: at least, and at most.
fn charged_for(case: &Case<'_>, call: &Call) -> (u64, u64) {
    let any = (0, call.estimate.max(call.used));
    let Some(reply) = &call.reply else {
        return any; // its node died
    };
    if reply.id.is_none() {
        return (0, 0);
    }
    if call.sent >= case.scenario.last_look() {
        return (call.estimate, call.estimate); // it is still open
    }
    let dies = |node: usize| {
        let mut deaths = case.history.deaths.iter();
        deaths.any(|(at, dead)| *dead == node && *at >= call.sent)
    };
    let exact = reply.source == Source::Exact;
    if call.settlements.is_empty() {
        return match exact || !dies(call.node) {
            true => (0, 0),
            false => any,
        };
    }
    let said = |what| {
        let mut said = call.settlements.iter().filter_map(|said| said.answer);
        said.any(|(_, settlement)| settlement == what)
    };
    if said(Settlement::Done) || said(Settlement::Late) {
        return match exact {
            true => (call.used, call.used),
            // What is to be given back of what a node admitted by itself may be lost on the way.
            false if dies(call.node) => any,
            false => (call.used, call.used.max(call.estimate)),
        };
    }
    let plain = call.settlements.iter().all(|said| said.answer.is_some());
    if !plain {
        return any;
    }
    let waits_on = call.settlements.iter().all(|said| !dies(said.node));
    match (said(Settlement::Waiting), said(Settlement::Lapsed)) {
        (false, true) => (0, 0),
        // Sent again, or too late: then the estimate has come back. Where answers are lost on the way a few
        // seeds end with more, and what of it is right has not been told apart yet.
        (true, _) if exact && waits_on && case.scenario.fault != Fault::Gray => (0, call.used),
        _ => any,
    }
}
