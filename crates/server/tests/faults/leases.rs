//! Leases while nodes and the store die at random, for two minutes: never more than is stated, and hardly less than
//! the limit outside the faults.
//!
//! `TG_TEST_FAULT_SECS` makes it longer, `TG_TEST_FAULT_SEED` repeats the same faults, and
//! `TG_TEST_FAULT_MISSING=2` sets the bound for a machine that does nothing else.

use std::time::{Duration, Instant, SystemTime};

use tidegate_core::units::{Cost, Nanos};
use tidegate_testkit::TestRedis as Redis;

use crate::crashes::{CrashEvent, CrashKind, CrashSchedule, crash};
use crate::fleet::Fleet;
use crate::history::{RequestHistory, RequestRecord, now};
use crate::load::RequestLoad;
use crate::rates::{SHARE, TestRate};

const USUALLY: u64 = 120;
/// Three times what each limit allows in a second.
const OFFERED: u32 = 3_000;
const LENGTH: u32 = 20;
/// A node that is exact again still learns the membership, and pending charges are written back. After this time a
/// fault has no effect any more.
const RECOVERED: Nanos = Nanos::from_secs(2);
/// The percentage of the limit that may be missing outside the faults by default. Beside other tests a machine
/// stalls, and that must not fail the test.
const MISSING: u64 = 10;

/// Stretches without a fault in which no request is decided without the store: a machine that stalls is a fault,
/// too.
fn calm(history: &RequestHistory, faults: &[CrashEvent], begun: Nanos, ended: Nanos) -> Vec<(Nanos, Nanos)> {
    let mut troubles: Vec<(Nanos, Nanos)> = faults.iter().map(|f| (f.began, f.exact)).collect();
    let local = history.records.iter().filter(|record| record.local());
    troubles.extend(local.map(|record| (record.sent, record.received)));
    troubles.sort_unstable();
    let mut stretches = Vec::new();
    let mut from = begun;
    for (began, over) in troubles.into_iter().chain([(ended, ended)]) {
        if began > from {
            stretches.push((from, began));
        }
        from = from.max(over.plus(RECOVERED));
    }
    stretches
}

/// The part of a stretch that can be judged: whole windows, or all of it.
fn judged(rate: &TestRate, (from, to): (Nanos, Nanos)) -> Option<(Nanos, Nanos)> {
    if rate.burst.is_some() {
        return Some((from, to));
    }
    let per = rate.per.get();
    let edges = (from.get().div_ceil(per) * per, to.get() / per * per);
    (edges.0 < edges.1).then_some((Nanos::new(edges.0), Nanos::new(edges.1)))
}

/// What the limit admits of the requests that came in a stretch, if nothing was left at its beginning.
fn allows(history: &RequestHistory, rate: &TestRate, (from, to): (Nanos, Nanos)) -> u64 {
    let limit = rate.limit(100);
    let mut state = limit.fresh(from);
    if rate.burst.is_some() {
        let at = limit.advance(&mut state, from);
        limit.spend(&mut state, at, Cost::new(limit.capacity()).unwrap());
    }
    let came = history.of_rule(rate.name).filter(|r| r.decision.is_ok());
    let mut admitted = 0;
    for record in came.filter(|r| from <= r.sent && r.sent < to) {
        let at = limit.advance(&mut state, record.sent);
        if limit.judge(&state, at, Cost::ONE).allows() {
            limit.spend(&mut state, at, Cost::ONE);
            admitted += 1;
        }
    }
    admitted
}

/// The result of two minutes.
struct FaultRun {
    history: RequestHistory,
    faults: Vec<CrashEvent>,
    begun: Nanos,
    ended: Nanos,
}

impl FaultRun {
    #[track_caller]
    fn failed_only_at_dead_nodes(&self) {
        let failed = self.history.records.iter().filter(|r| r.decision.is_err());
        let excused = |record: &RequestRecord| self.faults.iter().any(|fault| fault.explains_failure(record));
        let unexcused: Vec<&RequestRecord> = failed.filter(|record| !excused(record)).collect();
        assert!(
            unexcused.is_empty(),
            "{} failed, the first: {:#?} amid {:#?}",
            unexcused.len(),
            &unexcused[..unexcused.len().min(3)],
            self.faults
        );
    }

    /// From one restart of the store to the next, whichever nodes die meanwhile, the store never charged more than
    /// the limit, in advance or not.
    #[track_caller]
    fn charged_within_the_limit(&self, rate: &TestRate) {
        let restarts = self.faults.iter().filter(|fault| fault.hits_store());
        let (mut from, mut stretches) = (self.begun, Vec::new());
        for fault in restarts {
            stretches.push((from, fault.began));
            from = fault.exact;
        }
        stretches.push((from, self.ended));
        for (from, to) in stretches {
            let inside = |r: &RequestRecord| !r.local() && from <= r.sent && r.received <= to;
            self.history.at_most(rate, 100, inside);
        }
    }

    /// In any case, no more than the limit, the share beside it, and the charges that were lost because a node died
    /// together with the store. Returns these.
    #[track_caller]
    fn within_what_is_stated(&self, rate: &TestRate) -> u64 {
        let faults = self.faults.iter();
        let taken: Vec<_> = faults.map(|fault| fault.is_lost_charge(&self.history, rate.name)).collect();
        let known = |record: &RequestRecord| !taken.iter().any(|taken| taken(record));
        self.history.at_most(rate, 100 + SHARE, known);
        let rule = self.history.of_rule(rate.name);
        rule.filter(|record| !known(record)).count() as u64
    }

    /// What was admitted outside the faults, what the limit allows there, and how long that was.
    fn outside(&self, rate: &TestRate) -> (u64, u64, Nanos) {
        let stretches = calm(&self.history, &self.faults, self.begun, self.ended);
        let (mut found, mut due, mut lasted) = (0, 0, Nanos::ZERO);
        for stretch in stretches.into_iter().filter_map(|s| judged(rate, s)) {
            found += self.history.perhaps(rate.name, stretch, |_| true);
            due += allows(&self.history, rate, stretch);
            lasted = lasted.plus(stretch.1.since(stretch.0));
        }
        (found, due, lasted)
    }

    #[track_caller]
    fn judge(&self, rate: &TestRate) {
        let (found, due, lasted) = self.outside(rate);
        let all = || self.history.of_rule(rate.name);
        let admitted = all().filter(|r| r.admitted()).count() as u64;
        let lasted_all = self.ended.since(self.begun);
        let allowed = u128::from(rate.count) * u128::from(lasted_all.get());
        let allowed = allowed / u128::from(rate.per.get());
        eprintln!(
            "leases, {}: {} decisions, {} by leases, {} by the store, {} without it; {admitted} \
             admitted of {allowed}; outside the faults, {lasted} in all, {found} of {due}; at most {} \
             %",
            rate.name,
            all().count(),
            all().filter(|r| r.leased()).count(),
            all().filter(|r| r.exact()).count(),
            all().filter(|r| r.local()).count(),
            self.history.percent(rate),
        );
        self.charged_within_the_limit(rate);
        let taken = self.within_what_is_stated(rate);
        eprintln!("leases, {}: {taken} lost with a node", rate.name);
        let by_lease = all().filter(|r| r.leased() && r.admitted()).count() as u64;
        assert!(by_lease > 0, "{}: no decision used a lease", rate.name);
        assert!(due > 0, "{}: nothing outside the faults", rate.name);
        let missing = setting("TG_TEST_FAULT_MISSING").unwrap_or(MISSING);
        assert!(found * 100 >= due * (100 - missing), "{}: only {found} of {due} outside the faults", rate.name);
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text}")))
}

#[test]
fn two_minutes_of_crashes_admit_no_more_than_is_stated_and_hardly_less() {
    let second = Nanos::from_secs(1);
    let rates = [
        TestRate::bucket("bucket", 1_000, second, 1_000).counting("leased"),
        TestRate::window("window", 2_000, Nanos::from_secs(2)).counting("leased"),
    ];
    let lasts = Duration::from_secs(setting("TG_TEST_FAULT_SECS").unwrap_or(USUALLY));
    let seed = setting("TG_TEST_FAULT_SEED").unwrap_or_else(|| {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        u64::from(time.unwrap().subsec_nanos())
    });
    let mut schedule = CrashSchedule::from_seed(seed);
    let mut store = Redis::redis7();
    let mut fleet = Fleet::start(&rates, &store.url());
    let per_second: Vec<_> = rates.iter().map(|rate| (rate.name, OFFERED)).collect();
    let load = RequestLoad::of_lists(&fleet, &per_second, LENGTH);
    let (since, mut faults) = (Instant::now(), Vec::new());
    // No node knows yet how busy each limit is.
    std::thread::sleep(Duration::from_secs(1));
    let begun = now();
    while since.elapsed() < lasts {
        std::thread::sleep(schedule.millis(5_000, 9_000));
        faults.push(crash(&mut store, &mut fleet, &mut schedule));
    }
    std::thread::sleep(Duration::from_secs(5));
    let ended = now();
    let run = FaultRun { history: load.stop(), faults, begun, ended };
    let kinds: Vec<CrashKind> = run.faults.iter().map(|fault| fault.kind).collect();
    eprintln!("leases: seed {seed}, {kinds:?}");
    run.failed_only_at_dead_nodes();
    rates.iter().for_each(|rate| run.judge(rate));
}
