//! The requests of clients with their responses, and the assertions on them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Deserialize;
use tidegate_core::invariants::{AdmissionSpan, surely_within_bound};
use tidegate_core::units::Nanos;

use crate::rates::TestRate;

#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) rule: &'static str,
    pub(crate) node: usize,
    pub(crate) sent: Nanos,
    pub(crate) received: Nanos,
    pub(crate) decision: Result<CheckReply, String>,
}

/// A decision as the response has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct CheckReply {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
    pub(crate) source: ReplySource,
}

/// How a decision was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReplySource {
    Exact,
    Late,
    DenyCache,
    Fallback,
    Lease,
    Lenient,
}

impl CheckReply {
    pub(crate) fn read(body: &str) -> Result<CheckReply, String> {
        serde_json::from_str(body).map_err(|error| format!("{error} in {body}"))
    }

    /// The decisions of a list.
    pub(crate) fn read_all(body: &str) -> Result<Vec<CheckReply>, String> {
        serde_json::from_str(body).map_err(|error| format!("{error} in {body}"))
    }
}

/// The time of day, which the store has too.
pub(crate) fn now() -> Nanos {
    of_day(SystemTime::now())
}

pub(crate) fn of_day(time: SystemTime) -> Nanos {
    Nanos::from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap())
}

impl RequestRecord {
    fn is(&self, source: ReplySource) -> bool {
        self.decision.as_ref().is_ok_and(|a| a.source == source)
    }

    /// Decided without the store.
    pub(crate) fn local(&self) -> bool {
        self.is(ReplySource::Fallback)
    }

    /// Decided by units that the store had charged before.
    pub(crate) fn leased(&self) -> bool {
        self.is(ReplySource::Lease)
    }

    /// Decided by the last known counts, without waiting for the store.
    pub(crate) fn lenient(&self) -> bool {
        self.is(ReplySource::Lenient)
    }

    /// Decided by the store.
    pub(crate) fn exact(&self) -> bool {
        self.is(ReplySource::Exact)
    }

    pub(crate) fn admitted(&self) -> bool {
        self.decision.as_ref().is_ok_and(|decision| decision.allowed)
    }

    /// When it was decided, as far as that is known.
    fn span(&self) -> AdmissionSpan {
        let span = AdmissionSpan { from: self.sent, to: self.received, units: 1 };
        if self.local() { span.widened(DRIFT) } else { span }
    }
}

/// All requests, in the order of sending.
pub(crate) struct RequestHistory {
    pub(crate) records: Vec<RequestRecord>,
}

/// How far a node's estimate of the store's time may be off: half the longest round trip that it accepts. Decisions
/// without the store use this estimate.
const DRIFT: Nanos = Nanos::new(crate::fleet::BUDGET.get() / 2);

impl RequestHistory {
    pub(crate) fn of(mut records: Vec<RequestRecord>) -> RequestHistory {
        records.sort_by_key(|record| record.sent);
        RequestHistory { records }
    }

    /// Every request had a response in time.
    #[track_caller]
    pub(crate) fn none_failed(&self) {
        let failed = self.records.iter().filter(|r| r.decision.is_err());
        let failed: Vec<&RequestRecord> = failed.collect();
        assert!(failed.is_empty(), "{} of {} failed, the first: {:?}", failed.len(), self.records.len(), failed[0]);
    }

    /// The decisions of one rule.
    pub(crate) fn of_rule(&self, rule: &str) -> impl Iterator<Item = &RequestRecord> {
        let own = move |record: &&RequestRecord| record.rule == rule;
        self.records.iter().filter(own)
    }

    /// When each of those admissions happened. Requests of one list happened together.
    pub(crate) fn spans(&self, rule: &str, which: impl Fn(&RequestRecord) -> bool) -> Vec<AdmissionSpan> {
        let admitted = self.of_rule(rule).filter(|r| r.admitted() && which(r));
        let mut spans: Vec<AdmissionSpan> = Vec::new();
        for span in admitted.map(RequestRecord::span) {
            match spans.last_mut() {
                Some(last) if (last.from, last.to) == (span.from, span.to) => {
                    last.units += span.units;
                }
                _ => spans.push(span),
            }
        }
        spans
    }

    /// No interval exceeds `percent` of the limit.
    #[track_caller]
    pub(crate) fn at_most(&self, rate: &TestRate, percent: u64, which: impl Fn(&RequestRecord) -> bool) {
        let spans = self.spans(rate.name, which);
        if let Err(violation) = surely_within_bound(&rate.limit(percent), &spans) {
            panic!("{} at {percent} %: {violation}", rate.name);
        }
    }

    /// The percentage of the limit that all admissions come to: 100 unless more was surely admitted.
    pub(crate) fn percent(&self, rate: &TestRate) -> u64 {
        let spans = self.spans(rate.name, |_| true);
        let holds = |percent: &u64| surely_within_bound(&rate.limit(*percent), &spans).is_ok();
        (100..1_000).find(holds).unwrap_or(1_000)
    }

    /// Admissions that may have happened from `from` to `to`.
    pub(crate) fn perhaps(
        &self,
        rule: &str,
        (from, to): (Nanos, Nanos),
        which: impl Fn(&RequestRecord) -> bool,
    ) -> u64 {
        let spans = self.spans(rule, which);
        let inside = spans.iter().filter(|s| s.to >= from && s.from < to);
        inside.map(|span| span.units).sum()
    }

    /// At least `percent` of the limit: in every window that lies wholly between, or over all of that time where
    /// there are none. A node that got fewer requests than its share, because this machine stalled, only has to
    /// admit these.
    #[track_caller]
    pub(crate) fn at_least(
        &self,
        rate: &TestRate,
        percent: u64,
        (from, to): (Nanos, Nanos),
        which: impl Fn(&RequestRecord) -> bool + Copy,
    ) {
        let windows = match rate.burst {
            None => windows(rate.per, from, to),
            Some(_) => vec![(from, to)],
        };
        assert!(!windows.is_empty(), "{}: no window to judge", rate.name);
        for (from, to) in windows {
            let found = self.perhaps(rate.name, (from, to), which);
            let due = u128::from(rate.count) * u128::from(to.since(from).get());
            let due = due * u128::from(percent) / 100 / u128::from(rate.per.get());
            let due = self.due_of_received(rate.name, due as u64, (from, to));
            assert!(found >= due, "{}: only {found} of {due} from {from} to {to}", rate.name);
        }
    }

    /// What remains of `due` when each node has to admit an equal part of it, and no more than it received from
    /// `from` to `to`.
    fn due_of_received(&self, rule: &str, due: u64, (from, to): (Nanos, Nanos)) -> u64 {
        let mut received: BTreeMap<usize, u64> = self.of_rule(rule).map(|r| (r.node, 0)).collect();
        for record in self.of_rule(rule) {
            if record.sent >= from && record.received < to {
                *received.entry(record.node).or_default() += 1;
            }
        }
        let part = due / (received.len() as u64).max(1);
        received.values().map(|received| part.min(*received)).sum()
    }

    /// The last decision without the store.
    pub(crate) fn last_local(&self) -> Option<Nanos> {
        let local = self.records.iter().filter(|r| r.local());
        local.map(|record| record.received).max()
    }
}

/// Aligned windows that lie wholly between.
pub(crate) fn windows(per: Nanos, from: Nanos, to: Nanos) -> Vec<(Nanos, Nanos)> {
    let edge = |i: u64| Nanos::new(i * per.get());
    let first = from.get().div_ceil(per.get());
    let last = to.get() / per.get();
    (first..last).map(|i| (edge(i), edge(i + 1))).collect()
}
