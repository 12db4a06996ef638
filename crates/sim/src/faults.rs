//! What goes wrong, when the scenario says so.

use tidegate_core::units::Nanos;

use crate::model::{Lateness, Weather};
use crate::scenario::{Fault, Scenario};
use crate::world::World;

const TWO_HOURS: Nanos = Nanos::from_secs(7_200);

/// Lets the fault of the scenario happen.
pub(crate) async fn happen(world: World) {
    let Scenario {
        fault,
        begins,
        clears,
        ..
    } = *world.scenario;
    match fault {
        Fault::Chaos => chaos(&world).await,
        fault => {
            world.sim.sleep_until(begins).await;
            one(&world, fault, clears).await;
        }
    }
}

/// Several faults, one after the other or at once.
async fn chaos(world: &World) {
    let (begins, clears) = (world.scenario.begins, world.scenario.clears);
    let faults = world.sim.draw(|rng| rng.between(2, 4));
    for _ in 0..faults {
        let world = world.clone();
        let span = clears.since(begins).get();
        let (fault, from, to) = world.sim.draw(|rng| {
            let fault = rng.pick(&[
                Fault::Kill,
                Fault::KillEmpty,
                Fault::Restart,
                Fault::Hang,
                Fault::Slow,
                Fault::BlackHole,
                Fault::Gray,
                Fault::Flush,
                Fault::Failover,
                Fault::Pause,
            ]);
            let (a, b) = (rng.below(span), rng.below(span));
            (fault, Nanos::new(a.min(b)), Nanos::new(a.max(b)))
        });
        let sim = world.sim.clone();
        sim.spawn(None, async move {
            world.sim.sleep_until(begins.plus(from)).await;
            one(&world, fault, begins.plus(to)).await;
        });
    }
    // Whatever is left over ends here.
    world.sim.sleep_until(clears).await;
    world.weather(Weather::FAIR);
}

async fn one(world: &World, fault: Fault, until: Nanos) {
    match fault {
        Fault::None | Fault::Drift | Fault::Chaos => {}
        Fault::Kill | Fault::KillEmpty | Fault::Restart | Fault::LateStore => {
            world.weather(Weather {
                down: true,
                ..Weather::FAIR
            });
            world.sim.sleep_until(until).await;
            if matches!(fault, Fault::KillEmpty | Fault::Restart) {
                world.hit().lock().restart_empty();
                lost(world);
            }
            world.weather(Weather::FAIR);
        }
        Fault::Hang => {
            let hung = Weather {
                hung: true,
                ..Weather::FAIR
            };
            for_a_while(world, hung, until).await;
        }
        Fault::Slow => {
            let millis = world.sim.draw(|rng| rng.pick(&[4, 10, 50, 250]));
            let slow = Weather {
                fastest: Nanos::from_millis(millis),
                ..Weather::FAIR
            };
            for_a_while(world, slow, until).await;
        }
        Fault::BlackHole => {
            let hole = Weather {
                requests_lost: 1_000,
                ..Weather::FAIR
            };
            for_a_while(world, hole, until).await;
        }
        Fault::Gray => {
            let (requests_lost, answers_lost, spread) = world.sim.draw(|rng| {
                let lost = |rng: &mut crate::Rng| rng.pick(&[0, 5, 20, 60]);
                (
                    lost(rng),
                    lost(rng),
                    rng.pick(&[300_000, 3_000_000, 5_000_000]),
                )
            });
            let gray = Weather {
                requests_lost,
                answers_lost,
                spread: Nanos::new(spread),
                ..Weather::FAIR
            };
            for_a_while(world, gray, until).await;
        }
        Fault::Flush => {
            world.hit().lock().forget_everything();
            lost(world);
        }
        Fault::Failover if world.scenario.parts > 1 => {
            world.weather(Weather {
                down: true,
                ..Weather::FAIR
            });
            lost(world);
            world.sim.sleep_until(until).await;
            world.take_over();
        }
        Fault::Move => world.move_away(),
        Fault::Failover | Fault::FailoverSkewed => {
            world.weather(Weather {
                down: true,
                ..Weather::FAIR
            });
            let skew = world.sim.draw(|rng| rng.pick(&[-10_i64, -3, 3, 10]));
            {
                let hit = world.hit();
                let mut model = hit.lock();
                model.fail_over();
                if fault == Fault::FailoverSkewed {
                    let epoch = model
                        .epoch
                        .get()
                        .saturating_add_signed(skew * 1_000_000_000);
                    model.epoch = Nanos::new(epoch);
                }
            }
            lost(world);
            world.sim.sleep_until(until).await;
            world.weather(Weather::FAIR);
        }
        Fault::StepForward | Fault::StepBack => {
            let hit = world.hit();
            let mut model = hit.lock();
            model.epoch = match fault {
                Fault::StepForward => model.epoch.plus(TWO_HOURS),
                _ => model.epoch.since(TWO_HOURS),
            };
        }
        Fault::Pause => {
            let nodes = world.scenario.nodes as u64;
            let node = world.sim.draw(|rng| rng.below(nodes)) as usize;
            world.sim.pause(node, until);
            let pause = (world.sim.now(), until, node);
            world.history.lock().pauses.push(pause);
        }
        Fault::LateReplies => {
            let per_mille = world.scenario.late_per_mille;
            for_a_while(world, late(world, per_mille, None), until).await;
        }
        Fault::SlowNode => {
            for_a_while(world, late(world, 1_000, Some(0)), until).await;
        }
        Fault::Stalls => {
            while world.sim.now() < until {
                let (stall, pause) = world
                    .sim
                    .draw(|rng| (rng.between(50, 500), rng.between(80, 700)));
                let stalled = Weather {
                    hung: true,
                    ..Weather::FAIR
                };
                let ends = world.sim.now().plus(Nanos::from_millis(stall)).min(until);
                for_a_while(world, stalled, ends).await;
                world.sim.sleep(Nanos::from_millis(pause)).await;
            }
        }
        Fault::LateAndLost => {
            let weather = late(world, world.scenario.late_per_mille, None);
            while world.sim.now() < until {
                let calm = world.sim.draw(|rng| rng.between(100, 1_500));
                let ends = world.sim.now().plus(Nanos::from_millis(calm)).min(until);
                for_a_while(world, weather, ends).await;
                // Every connection breaks, and is made anew at once.
                world.weather(Weather {
                    down: true,
                    ..weather
                });
                world.sim.sleep(Nanos::new(50_000)).await;
                world.weather(Weather::FAIR);
            }
        }
        Fault::NodeDeath | Fault::Drain => {
            let node = victim(world);
            match fault {
                Fault::Drain => world.drain(node).await,
                _ => world.kill(node),
            }
            world.sim.sleep_until(until).await;
            world.start(node);
        }
        Fault::DeathWithStore => {
            world.weather(Weather {
                down: true,
                ..Weather::FAIR
            });
            let node = victim(world);
            world.kill(node);
            world.sim.sleep_until(until).await;
            world.hit().lock().restart_empty();
            lost(world);
            world.weather(Weather::FAIR);
        }
    }
}

/// Replies from one budget to ten late.
fn late(world: &World, per_mille: u32, node: Option<usize>) -> Weather {
    let budget = world.scenario.budget;
    Weather {
        lateness: Lateness {
            per_mille,
            min: budget,
            max: Nanos::new(10 * budget.get()),
            node,
        },
        ..Weather::FAIR
    }
}

fn victim(world: &World) -> usize {
    let nodes = world.scenario.nodes as u64;
    world.sim.draw(|rng| rng.below(nodes)) as usize
}

fn lost(world: &World) {
    let now = world.sim.now();
    world.history.lock().losses.push(now);
}

async fn for_a_while(world: &World, weather: Weather, until: Nanos) {
    world.weather(weather);
    world.sim.sleep_until(until).await;
    world.weather(Weather::FAIR);
}
