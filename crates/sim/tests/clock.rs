//! Clocks that disagree: every node tells so, once, and no decision suffers. That none does is what the
//! seeds check: their nodes are half a minute apart.

use tidegate::resilience::{ClockNews, Event, Level};
use tidegate_sim::history::History;
use tidegate_sim::scenario::{Fault, Scenario};
use tidegate_sim::{Variant, world};

const SECOND: i64 = 1_000_000_000;

/// What each node told of its clock.
fn news(history: &History, node: usize) -> Vec<ClockNews> {
    let events = history.events.iter();
    let own = events.filter_map(|(_, of, event)| match event {
        Event::Clock(news) if *of == node => Some(*news),
        _ => None,
    });
    own.collect()
}

fn run(seed: u64, fault: Fault) -> (Scenario, History) {
    let scenario = Scenario::with(seed, fault);
    let history = world::run(&scenario, Variant::Shipped);
    (scenario, history)
}

#[test]
fn a_node_whose_clock_is_wrong_says_so_once_and_a_right_one_says_nothing() {
    for seed in 0..5 {
        let (scenario, history) = run(seed, Fault::None);
        let skew = i64::try_from(scenario.skew.get()).unwrap();
        assert_eq!(news(&history, 0), [], "seed {seed}");
        for node in 1..scenario.nodes {
            let told = news(&history, node);
            let [ClockNews::Level { level, offset }] = told[..] else {
                panic!("seed {seed}, node {node}: {told:?}");
            };
            assert_eq!(level, Level::Alarm);
            let wrong = offset.nanos + skew * node as i64;
            assert!(wrong.unsigned_abs() <= offset.error.get(), "{offset:?}");
        }
    }
}

#[test]
fn a_store_whose_clock_is_set_is_told_of_by_every_node_once() {
    for (fault, hours) in [(Fault::StepForward, 2), (Fault::StepBack, -2)] {
        for seed in 0..5 {
            let (scenario, history) = run(seed, fault);
            for node in 0..scenario.nodes {
                let told = news(&history, node);
                let jumps = told.iter().filter_map(|news| match news {
                    ClockNews::Jumped { by } => Some(*by),
                    ClockNews::Level { .. } => None,
                });
                let jumps: Vec<i64> = jumps.collect();
                assert_eq!(
                    jumps.len(),
                    1,
                    "{fault:?}, seed {seed}, node {node}: {told:?}"
                );
                let wrong = jumps[0] - hours * 3_600 * SECOND;
                assert!(wrong.abs() < SECOND, "{told:?}");
            }
        }
    }
}
