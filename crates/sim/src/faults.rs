//! Injects the fault of a scenario into the running world.

use tidegate_core::units::Nanos;

use crate::model::{Lateness, NetworkConditions};
use crate::scenario::{Scenario, SimFault, Work};
use crate::world::{NodeExit, World};

const TWO_HOURS: Nanos = Nanos::from_secs(7_200);

/// Injects the fault of the scenario.
pub(crate) async fn inject(world: World) {
    let Scenario { fault, fault_begins: begins, fault_ends: ends_at, .. } = *world.scenario;
    match fault {
        SimFault::Chaos => chaos(&world).await,
        fault => {
            world.sim.sleep_until(begins).await;
            inject_one(&world, fault, ends_at).await;
        }
    }
}

/// Several faults, one after another or at the same time.
async fn chaos(world: &World) {
    let (begins, ends_at) = (world.scenario.fault_begins, world.scenario.fault_ends);
    let faults = world.sim.with_rng(|rng| rng.between(2, 4));
    for _ in 0..faults {
        let world = world.clone();
        let span = ends_at.since(begins).get();
        let (fault, from, to) = world.sim.with_rng(|rng| {
            let fault = rng.pick(&[
                SimFault::Kill,
                SimFault::KillEmpty,
                SimFault::Restart,
                SimFault::Hang,
                SimFault::Slow,
                SimFault::BlackHole,
                SimFault::Gray,
                SimFault::Flush,
                SimFault::Failover,
                SimFault::Pause,
            ]);
            let (a, b) = (rng.below(span), rng.below(span));
            (fault, Nanos::new(a.min(b)), Nanos::new(a.max(b)))
        });
        let sim = world.sim.clone();
        sim.spawn(None, async move {
            world.sim.sleep_until(begins.plus(from)).await;
            inject_one(&world, fault, begins.plus(to)).await;
        });
    }
    // Remaining faults end here.
    world.sim.sleep_until(ends_at).await;
    world.set_conditions(NetworkConditions::HEALTHY);
}

async fn inject_one(world: &World, fault: SimFault, until: Nanos) {
    match fault {
        SimFault::None | SimFault::Drift | SimFault::Chaos => {}
        SimFault::Kill | SimFault::KillEmpty | SimFault::Restart | SimFault::LateStore => {
            world.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
            world.sim.sleep_until(until).await;
            if matches!(fault, SimFault::KillEmpty | SimFault::Restart) {
                world.hit_store().lock().restart_empty();
                record_loss(world);
            }
            world.set_conditions(NetworkConditions::HEALTHY);
        }
        SimFault::Hang => {
            let hung = NetworkConditions { hung: true, ..NetworkConditions::HEALTHY };
            apply_until(world, hung, until).await;
        }
        SimFault::Slow => {
            let millis = world.sim.with_rng(|rng| rng.pick(&[4, 10, 50, 250]));
            let slow = NetworkConditions { min_latency: Nanos::from_millis(millis), ..NetworkConditions::HEALTHY };
            apply_until(world, slow, until).await;
        }
        SimFault::BlackHole => {
            let hole = NetworkConditions { requests_lost: 1_000, ..NetworkConditions::HEALTHY };
            apply_until(world, hole, until).await;
        }
        SimFault::Gray => {
            let (requests_lost, replies_lost, jitter) = world.sim.with_rng(|rng| {
                let lost = |rng: &mut crate::Rng| rng.pick(&[0, 5, 20, 60]);
                (lost(rng), lost(rng), rng.pick(&[300_000, 3_000_000, 5_000_000]))
            });
            let gray = NetworkConditions {
                requests_lost,
                replies_lost,
                jitter: Nanos::new(jitter),
                ..NetworkConditions::HEALTHY
            };
            apply_until(world, gray, until).await;
        }
        SimFault::Flush => {
            world.hit_store().lock().flush();
            record_loss(world);
        }
        SimFault::Failover if world.scenario.shards > 1 => {
            world.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
            record_loss(world);
            world.sim.sleep_until(until).await;
            world.promote_replica();
        }
        SimFault::Move => world.move_subjects(),
        SimFault::Failover | SimFault::FailoverSkewed => {
            world.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
            let skew = world.sim.with_rng(|rng| rng.pick(&[-10_i64, -3, 3, 10]));
            {
                let store = world.hit_store();
                let mut model = store.lock();
                model.fail_over();
                if fault == SimFault::FailoverSkewed {
                    let offset = model.clock_offset.get().saturating_add_signed(skew * 1_000_000_000);
                    model.clock_offset = Nanos::new(offset);
                }
            }
            record_loss(world);
            world.sim.sleep_until(until).await;
            world.set_conditions(NetworkConditions::HEALTHY);
        }
        SimFault::StepForward | SimFault::StepBack => {
            let store = world.hit_store();
            let mut model = store.lock();
            model.clock_offset = match fault {
                SimFault::StepForward => model.clock_offset.plus(TWO_HOURS),
                _ => model.clock_offset.since(TWO_HOURS),
            };
        }
        SimFault::Pause => {
            let nodes = world.scenario.nodes as u64;
            let node = world.sim.with_rng(|rng| rng.below(nodes)) as usize;
            world.sim.pause(node, until);
            let pause = (world.sim.now(), until, node);
            world.history.lock().pauses.push(pause);
        }
        SimFault::LateReplies => {
            let per_mille = world.scenario.late_per_mille;
            apply_until(world, late_replies(world, per_mille, None), until).await;
        }
        SimFault::SlowNode => {
            apply_until(world, late_replies(world, 1_000, Some(0)), until).await;
        }
        SimFault::Stalls => {
            while world.sim.now() < until {
                let (stall, pause) = world.sim.with_rng(|rng| (rng.between(50, 500), rng.between(80, 700)));
                let stalled = NetworkConditions { hung: true, ..NetworkConditions::HEALTHY };
                let ends = world.sim.now().plus(Nanos::from_millis(stall)).min(until);
                apply_until(world, stalled, ends).await;
                world.sim.sleep(Nanos::from_millis(pause)).await;
            }
        }
        SimFault::LateAndLost => {
            let conditions = late_replies(world, world.scenario.late_per_mille, None);
            while world.sim.now() < until {
                let calm = world.sim.with_rng(|rng| rng.between(100, 1_500));
                let ends = world.sim.now().plus(Nanos::from_millis(calm)).min(until);
                apply_until(world, conditions, ends).await;
                // Every connection breaks and is reopened at once.
                world.set_conditions(NetworkConditions { down: true, ..conditions });
                world.sim.sleep(Nanos::new(50_000)).await;
                world.set_conditions(NetworkConditions::HEALTHY);
            }
        }
        SimFault::OutagesAndRestarts => outages_and_restarts(world, until).await,
        SimFault::NodeDeath | SimFault::Drain => {
            let node = victim(world);
            match fault {
                SimFault::Drain => world.drain(node).await,
                _ => world.kill(node),
            }
            world.sim.sleep_until(until).await;
            world.start(node);
        }
        SimFault::DeathWithStore => {
            world.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
            let node = victim(world);
            world.kill(node);
            world.sim.sleep_until(until).await;
            world.hit_store().lock().restart_empty();
            record_loss(world);
            world.set_conditions(NetworkConditions::HEALTHY);
        }
    }
}

/// Outages until `until`, and restarts of nodes. Where clients send checks, the last outage is long.
async fn outages_and_restarts(world: &World, until: Nanos) {
    let down = NetworkConditions { down: true, ..NetworkConditions::HEALTHY };
    let (last, outage, restarts) = match world.scenario.work {
        Work::Checks => (until.since(world.scenario.last_outage()), (200, 1_200), 200),
        // Long enough for every breaker to open: then no node gets permits that others renew without the store. Long
        // enough, too, for a node that restarts in the outage to grant its whole share before and after.
        Work::Reservations(_) | Work::Permits(_) => (until, (1_200, 2_500), 500),
    };
    loop {
        let (away, healthy) = world.sim.with_rng(|rng| (rng.between(outage.0, outage.1), rng.between(1_300, 3_000)));
        if world.sim.now().plus(Nanos::from_millis(away + healthy)) > last {
            break;
        }
        restart_some(world, restarts);
        apply_until(world, down, world.sim.now().plus(Nanos::from_millis(away))).await;
        world.sim.sleep(Nanos::from_millis(healthy / 2)).await;
        restart_some(world, 500);
        world.sim.sleep(Nanos::from_millis(healthy / 2)).await;
    }
    if last < until {
        restart_some(world, 500);
        apply_until(world, down, until).await;
    }
}

/// Restarts each node with this probability, each at a time of its own.
fn restart_some(world: &World, per_mille: u32) {
    for node in 0..world.scenario.nodes {
        let (restarts, clean, at, lasts) = world.sim.with_rng(|rng| {
            let (at, lasts) = (rng.below(400), rng.between(1, 300));
            (rng.chance(per_mille), rng.chance(500), Nanos::from_millis(at), Nanos::from_millis(lasts))
        });
        if restarts {
            let (world, exit) = (world.clone(), if clean { NodeExit::Clean } else { NodeExit::Killed });
            world.sim.clone().spawn(None, async move {
                world.sim.sleep(at).await;
                world.restart(node, exit, lasts).await;
            });
        }
    }
}

/// Replies that are late by one to ten budgets.
fn late_replies(world: &World, per_mille: u32, node: Option<usize>) -> NetworkConditions {
    let budget = world.scenario.budget;
    NetworkConditions {
        lateness: Lateness { per_mille, min: budget, max: Nanos::new(10 * budget.get()), node },
        ..NetworkConditions::HEALTHY
    }
}

fn victim(world: &World) -> usize {
    let nodes = world.scenario.nodes as u64;
    world.sim.with_rng(|rng| rng.below(nodes)) as usize
}

fn record_loss(world: &World) {
    let now = world.sim.now();
    world.history.lock().losses.push(now);
}

async fn apply_until(world: &World, conditions: NetworkConditions, until: Nanos) {
    world.set_conditions(conditions);
    world.sim.sleep_until(until).await;
    world.set_conditions(NetworkConditions::HEALTHY);
}
