//! What the run itself looks at: the books of the stores, and what nodes tell of them.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::resilience::{Event, PartWatch};
use tidegate_core::store::PartId;
use tidegate_core::units::Nanos;

use crate::executor::Sim;
use crate::history::{History, Snapshot};
use crate::model::Cluster;
use crate::world::World;

/// Reads the stores' books now and then.
pub(crate) async fn audit(world: World) {
    loop {
        world.sim.sleep(Nanos::from_millis(130)).await;
        let at = world.sim.now();
        let lines = 0..world.scenario.parts;
        let truths: Vec<Nanos> = lines.map(|line| world.time(line)).collect();
        let used = world.counters.iter().enumerate().map(|(i, counter)| {
            let limit = world.scenario.limit(i);
            let line = world.cluster.line_of(counter.subject);
            let model = world.cluster.model(line);
            let mut model = model.lock();
            model.counters.used(counter.bits, &limit, truths[line])
        });
        let snapshot = Snapshot {
            at,
            truth: truths[0],
            used: used.collect(),
            truths,
        };
        world.history.lock().snapshots.push(snapshot);
    }
}

/// Writes down what a node tells of its parts, by the line that they are of.
pub(crate) struct Listener {
    pub(crate) sim: Sim,
    pub(crate) node: usize,
    pub(crate) history: Arc<Mutex<History>>,
    /// The line of each part that was ever met, and whether its breaker is open.
    pub(crate) parts: Mutex<Vec<(PartId, usize, bool)>>,
    pub(crate) cluster: Arc<Cluster>,
}

impl Listener {
    fn note(&self, line: usize, event: Event) {
        let mut history = self.history.lock();
        history.events.push((self.sim.now(), self.node, event));
        history.lines.push(line);
    }
}

impl PartWatch for Listener {
    fn met(&self, part: PartId) {
        let line = self.cluster.line(part).unwrap_or(0);
        self.parts.lock().push((part, line, false));
    }

    fn told(&self, part: PartId, event: Event) {
        let line = {
            let mut parts = self.parts.lock();
            let Some((_, line, open)) = parts.iter_mut().find(|(id, _, _)| *id == part) else {
                return;
            };
            match event {
                Event::BreakerOpened { .. } => *open = true,
                Event::BreakerClosed => *open = false,
                _ => {}
            }
            *line
        };
        self.note(line, event);
    }

    /// Its breaker is of no interest any more.
    fn gone(&self, part: PartId) {
        let mut parts = self.parts.lock();
        let Some(at) = parts.iter().position(|(id, _, _)| *id == part) else {
            return;
        };
        let (_, line, open) = parts.remove(at);
        drop(parts);
        if open {
            self.note(line, Event::BreakerClosed);
        }
    }
}
