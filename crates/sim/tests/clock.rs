//! Clocks that disagree: every node reports it, once. No decision suffers: the seeds check that, with nodes
//! half a minute apart.

use tidegate::resilience::{ClockEvent, ClockLevel, StoreEvent};
use tidegate_sim::history::History;
use tidegate_sim::scenario::{Scenario, SimFault};
use tidegate_sim::{Variant, world};

const SECOND: i64 = 1_000_000_000;

/// The clock events that a node reported.
fn clock_events(history: &History, node: usize) -> Vec<ClockEvent> {
    let events = history.events.iter();
    let own = events.filter_map(|(_, of, event)| match event {
        StoreEvent::Clock(event) if *of == node => Some(*event),
        _ => None,
    });
    own.collect()
}

fn run(seed: u64, fault: SimFault) -> (Scenario, History) {
    let scenario = Scenario::with_fault(seed, fault);
    let history = world::run(&scenario, Variant::Shipped);
    (scenario, history)
}

#[test]
fn a_node_with_a_wrong_clock_reports_it_once_and_one_with_a_right_clock_reports_nothing() {
    for seed in 0..5 {
        let (scenario, history) = run(seed, SimFault::None);
        let skew = i64::try_from(scenario.clock_skew.get()).unwrap();
        assert_eq!(clock_events(&history, 0), [], "seed {seed}");
        for node in 1..scenario.nodes {
            let events = clock_events(&history, node);
            let [ClockEvent::Level { level, offset }] = events[..] else {
                panic!("seed {seed}, node {node}: {events:?}");
            };
            assert_eq!(level, ClockLevel::Alarm);
            let wrong = offset.nanos + skew * node as i64;
            assert!(wrong.unsigned_abs() <= offset.error.get(), "{offset:?}");
        }
    }
}

#[test]
fn every_node_reports_a_store_clock_step_once() {
    for (fault, hours) in [(SimFault::StepForward, 2), (SimFault::StepBack, -2)] {
        for seed in 0..5 {
            let (scenario, history) = run(seed, fault);
            for node in 0..scenario.nodes {
                let events = clock_events(&history, node);
                let jumps = events.iter().filter_map(|event| match event {
                    ClockEvent::Jumped { by } => Some(*by),
                    ClockEvent::Level { .. } => None,
                });
                let jumps: Vec<i64> = jumps.collect();
                assert_eq!(jumps.len(), 1, "{fault:?}, seed {seed}, node {node}: {events:?}");
                let wrong = jumps[0] - hours * 3_600 * SECOND;
                assert!(wrong.abs() < SECOND, "{events:?}");
            }
        }
    }
}
