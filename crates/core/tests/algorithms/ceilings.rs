//! Requests that may use only a part of a limit, among others that may use more: the units used plus a cost reach at
//! most the ceiling, and all of it. One oracle covers the counter they share.

use tidegate_core::algorithms::{Algorithm, Division, Limit, Precision, Retry, Spec, Verdict};
use tidegate_core::units::{Cost, Nanos};

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, PeekResult, ShippedLimiter, cost};
use crate::oracle::{self, LimitOracle};
use crate::rng::for_each_seed;
use crate::trace::{ClockKind, TrafficTrace};

/// The same counter, as seen by a request that may use `ceiling` of it.
fn under(subject: &ShippedLimiter, ceiling: u64) -> ShippedLimiter {
    ShippedLimiter { limit: subject.limit.with_ceiling(ceiling), state: subject.state.clone() }
}

/// The units left for a request that may use `ceiling`, by the definition.
fn room(oracle: &dyn LimitOracle, whole: u64, ceiling: u64, now: Nanos) -> u64 {
    oracle.room(now).saturating_sub(whole - ceiling)
}

fn agree(oracle: &dyn LimitOracle, subject: &ShippedLimiter, ceiling: u64, now: Nanos, cost: Cost) -> PeekResult {
    let (part, whole) = (under(subject, ceiling), subject.limit.full_capacity());
    let (look, all) = (part.peek(now, cost), subject.peek(now, cost));
    let room = room(oracle, whole, ceiling, now);
    let about = format!("{cost} of {ceiling} of {whole} at {now:?}: {look:?}");
    assert_eq!(look.figures.remaining, room, "{about}");
    assert_eq!(look.figures.reset_after, all.figures.reset_after, "{about}");
    assert_eq!(look.fresh_at, all.fresh_at, "{about}");
    match look.verdict {
        Verdict::Allow { .. } => {
            assert!(cost.get() <= room, "{about}");
            assert_eq!(look.verdict, all.verdict, "{about}");
        }
        Verdict::Deny { retry: Retry::Never } => assert!(cost.get() > ceiling, "{about}"),
        Verdict::Deny { retry: Retry::After(wait) } => {
            assert!(room < cost.get() && cost.get() <= ceiling, "{about}");
            earliest(oracle, whole, ceiling, now, wait, cost.get());
        }
    }
    if room == ceiling {
        assert_eq!(look.figures.more_after, Nanos::ZERO, "{about}");
    } else {
        let wait = look.figures.more_after;
        earliest(oracle, whole, ceiling, now, wait, room + 1);
    }
    look
}

/// `wait` is enough for `units`, and one nanosecond less is not.
fn earliest(oracle: &dyn LimitOracle, whole: u64, ceiling: u64, now: Nanos, wait: Nanos, units: u64) {
    let (then, before) = (now.plus(wait), now.plus(wait).since(Nanos::new(1)));
    let room = |at| room(oracle, whole, ceiling, at);
    let enough = then == Nanos::MAX || room(then) >= units;
    assert!(enough && room(before) < units, "{units} after {wait:?}");
}

#[test]
fn a_cost_fits_exactly_when_it_and_the_units_used_do_not_exceed_the_ceiling() {
    let (mut allowed, mut denied, mut only_above) = (0_u64, 0_u64, 0_u64);
    for_each_seed(2_100, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let whole = case.limit.full_capacity();
        let mut oracle = oracle::of(&case);
        let mut subject = ShippedLimiter::new(&case.limit);
        let mut trace = TrafficTrace::new(&case, ClockKind::Unsteady);
        let mut last = None;
        for _ in 0..100 {
            trace.step(rng, last);
            let now = trace.now;
            subject.persist_step_back(now);
            oracle::apply_step_back(oracle.as_mut(), case.limit.tick(), now);
            let any = rng.between(1, whole);
            let ceiling = rng.pick(&[whole, any, (whole * 4 / 5).max(1), 1]);
            let cost = trace.cost(rng, room(oracle.as_ref(), whole, ceiling, now));
            let look = agree(oracle.as_ref(), &subject, ceiling, now, cost);
            if look.verdict.allows() {
                subject.spend(now, cost);
                oracle.record(now, cost.get());
                allowed += 1;
            } else {
                denied += 1;
                only_above += u64::from(subject.peek(now, cost).verdict.allows());
            }
            last = Some(look);
        }
    });
    let all_sides = allowed > 20_000 && denied > 20_000 && only_above > 10_000;
    let single = std::env::var_os("TG_TEST_SEED").is_some();
    assert!(all_sides || single, "{allowed} {denied} {only_above}");
}

fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(60));
    Limit::compile(&spec, Precision::Double).expect("the rate compiles")
}

/// Charges single units until one is denied. Returns their number.
fn charge_until_denied(subject: &mut ShippedLimiter, ceiling: u64) -> u64 {
    let now = Nanos::from_secs(1_000_000);
    let mut charged = 0;
    while under(subject, ceiling).peek(now, cost(1)).verdict.allows() {
        subject.spend(now, cost(1));
        charged += 1;
    }
    charged
}

#[test]
fn a_higher_ceiling_admits_the_units_that_a_lower_one_leaves() {
    for algorithm in Algorithm::ALL {
        let mut subject = ShippedLimiter::new(&limit(algorithm, 1_000));
        let charged = [800, 950, 1_000].map(|ceiling| charge_until_denied(&mut subject, ceiling));
        assert_eq!(charged, [800, 150, 50], "{algorithm}");
        assert_eq!(charge_until_denied(&mut subject, 800), 0, "{algorithm}");
    }
}

#[test]
fn a_ceiling_changes_no_state_and_no_debt() {
    for algorithm in Algorithm::ALL {
        let all = limit(algorithm, 100);
        let part = all.with_ceiling(10);
        assert_eq!((part.tag(), part.parameters()), (all.tag(), all.parameters()));
        assert_ne!(part, all);
        let now = Nanos::from_secs(1_000_000);
        let [mut one, mut other] = [all.fresh(now), part.fresh(now)];
        let at = all.advance(&mut one, now);
        all.spend(&mut one, at, cost(1_000));
        part.spend(&mut other, at, cost(1_000));
        assert_eq!(one, other, "{algorithm}");
        assert_eq!(all.used(&one, at), 200, "{algorithm}");
    }
}

#[test]
fn a_draw_takes_half_of_the_units_left_below_the_ceiling_or_an_eighth_of_the_request() {
    for algorithm in Algorithm::ALL {
        let all = limit(algorithm, 100);
        let now = Nanos::from_secs(1_000_000);
        let mut state = all.fresh(now);
        let at = all.advance(&mut state, now);
        all.spend(&mut state, at, cost(71));
        let mut drawn = |below: u64, wanted| all.with_ceiling(below).draw(&mut state, at, cost(wanted));
        assert_eq!(drawn(80, 40), 5, "{algorithm}");
        assert_eq!(drawn(60, 40), 0, "{algorithm}");
        assert_eq!(drawn(100, 40), 12, "{algorithm}");
        assert_eq!(drawn(90, 160), 2, "{algorithm}");
        assert_eq!(drawn(100, 64), 8, "{algorithm}");
    }
}

#[test]
fn the_shares_of_a_ceiling_add_up_over_all_nodes() {
    for algorithm in Algorithm::ALL {
        for (count, ceiling, nodes) in [(100, 80, 3), (10, 8, 4), (10, 1, 4), (7, 7, 7), (3, 2, 9)] {
            let limit = limit(algorithm, count);
            let shares = |ceiling| {
                let limit = limit.with_ceiling(ceiling);
                let share = move |rank| {
                    let rank = Some(rank);
                    limit.share(Division { percent: 80, nodes, rank })
                };
                (0..nodes).map(share)
            };
            let sum: u64 = shares(ceiling).flatten().map(|part| part.capacity()).sum();
            assert_eq!(sum, (ceiling * 4 / 5).max(1), "{algorithm} {ceiling}");
            for (part, all) in shares(ceiling).zip(shares(count)) {
                let tags = part.zip(all).map(|(part, all)| (part.tag(), all.tag()));
                assert!(tags.is_none_or(|(part, all)| part == all), "{algorithm}");
            }
        }
    }
}
