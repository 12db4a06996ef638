//! A single-threaded task executor on a virtual clock. The seed decides the order of tasks.
//!
//! Time stands still while any task is runnable and jumps to the next timer when none is. Among runnable
//! tasks the random generator picks one. A task belongs to one node or to none: tasks of a paused node wait,
//! tasks of a dead node are dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tidegate::runtime::Runtime;
use tidegate_core::units::Nanos;

use crate::rng::Rng;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to the simulation. Clones are the same simulation.
#[derive(Clone)]
pub struct Sim {
    state: Arc<Mutex<ExecutorState>>,
    woken: Arc<Mutex<Vec<usize>>>,
}

struct ExecutorState {
    now: Nanos,
    rng: Rng,
    tasks: Vec<TaskSlot>,
    free: Vec<usize>,
    ready: Vec<usize>,
    timers: BinaryHeap<Reverse<Timer>>,
    next_timer: u64,
    /// The instant until which each node is paused.
    paused: Vec<Nanos>,
    /// The number of deaths of each node.
    deaths: Vec<u64>,
}

#[derive(Default)]
struct TaskSlot {
    task: Option<Task>,
    waker: Option<Waker>,
    node: Option<usize>,
    queued: bool,
    alive: bool,
}

struct Timer {
    at: Nanos,
    sequence: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

struct TaskWaker {
    task: usize,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().push(self.task);
    }
}

impl Sim {
    /// A simulation that depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Sim {
            state: Arc::new(Mutex::new(ExecutorState {
                now: Nanos::ZERO,
                rng: Rng::new(seed),
                tasks: Vec::new(),
                free: Vec::new(),
                ready: Vec::new(),
                timers: BinaryHeap::new(),
                next_timer: 0,
                paused: Vec::new(),
                deaths: Vec::new(),
            })),
            woken: Arc::default(),
        }
    }

    /// The time since the start of the run.
    pub fn now(&self) -> Nanos {
        self.state.lock().now
    }

    /// Calls `run` with the random generator of the simulation.
    pub fn with_rng<T>(&self, run: impl FnOnce(&mut Rng) -> T) -> T {
        run(&mut self.state.lock().rng)
    }

    /// Sleeps for `span`.
    pub fn sleep(&self, span: Nanos) -> Sleep {
        self.sleep_until(self.now().plus(span))
    }

    /// Sleeps until `at`.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { sim: self.clone(), at, registered: None }
    }

    /// Spawns a task that belongs to `node`, or to no node.
    pub fn spawn(&self, node: Option<usize>, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state.lock();
        let slot = state.free.pop().unwrap_or_else(|| {
            state.tasks.push(TaskSlot::default());
            state.tasks.len() - 1
        });
        let waker = Waker::from(Arc::new(TaskWaker { task: slot, woken: Arc::clone(&self.woken) }));
        state.tasks[slot] =
            TaskSlot { task: Some(Box::pin(task)), waker: Some(waker), node, queued: true, alive: true };
        state.ready.push(slot);
    }

    /// Pauses the tasks of a node until `until`. Its clock keeps running.
    pub fn pause(&self, node: usize, until: Nanos) {
        let mut state = self.state.lock();
        if state.paused.len() <= node {
            state.paused.resize(node + 1, Nanos::ZERO);
        }
        state.paused[node] = until;
    }

    /// Drops all tasks of a node, whatever their state.
    pub fn kill(&self, node: usize) {
        let mut dropped = Vec::new();
        {
            let mut state = self.state.lock();
            if state.deaths.len() <= node {
                state.deaths.resize(node + 1, 0);
            }
            state.deaths[node] += 1;
            for slot in &mut state.tasks {
                if slot.node == Some(node) && slot.alive {
                    dropped.extend(slot.task.take());
                    slot.alive = false;
                }
            }
        }
        drop(dropped); // destructors may read the clock
    }

    fn deaths(&self, node: usize) -> u64 {
        let state = self.state.lock();
        state.deaths.get(node).copied().unwrap_or(0)
    }

    /// Drops every task.
    pub fn clear(&self) {
        let tasks = std::mem::take(&mut self.state.lock().tasks);
        drop(tasks); // destructors may read the clock
        let timers = std::mem::take(&mut self.state.lock().timers);
        drop(timers);
    }

    /// Runs until no event is left before `end`.
    pub fn run_until(&self, end: Nanos) {
        while self.step(end) {}
        let mut state = self.state.lock();
        state.now = state.now.max(end);
    }

    /// Runs until `future` completes and returns its output.
    ///
    /// # Panics
    ///
    /// When no task and no timer is left.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            // Polled again after every step, so it needs no waker.
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            assert!(self.step(Nanos::MAX), "no task and no timer is left");
        }
    }

    /// Runs one task, or advances time to the next timer.
    fn step(&self, end: Nanos) -> bool {
        let woken = std::mem::take(&mut *self.woken.lock());
        let mut state = self.state.lock();
        for slot in woken {
            let task = &mut state.tasks[slot];
            if task.alive && !task.queued {
                task.queued = true;
                state.ready.push(slot);
            }
        }
        if state.ready.is_empty() {
            let Some(Reverse(timer)) = state.timers.pop() else {
                return false;
            };
            if timer.at > end {
                state.timers.push(Reverse(timer));
                return false;
            }
            state.now = state.now.max(timer.at);
            drop(state);
            timer.waker.wake();
            return true;
        }
        let choices = state.ready.len() as u64;
        let pick = state.rng.below(choices) as usize;
        let slot = state.ready.swap_remove(pick);
        state.tasks[slot].queued = false;
        if self.wait_for_node(&mut state, slot) {
            return true;
        }
        let (Some(mut task), Some(waker)) = (state.tasks[slot].task.take(), state.tasks[slot].waker.clone()) else {
            return true;
        };
        drop(state);
        let done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.state.lock();
        if done || !state.tasks[slot].alive {
            state.tasks[slot].alive = false;
            state.free.push(slot);
            drop(state);
            drop(task);
        } else {
            state.tasks[slot].task = Some(task);
        }
        true
    }

    /// Whether a task must wait because its node is paused.
    fn wait_for_node(&self, state: &mut ExecutorState, slot: usize) -> bool {
        let Some(node) = state.tasks[slot].node else {
            return false;
        };
        let until = state.paused.get(node).copied().unwrap_or(Nanos::ZERO);
        let waker = state.tasks[slot].waker.clone();
        let (true, Some(waker)) = (until > state.now, waker) else {
            return false;
        };
        state.set_timer(until, waker);
        true
    }
}

impl ExecutorState {
    fn set_timer(&mut self, at: Nanos, waker: Waker) {
        self.next_timer += 1;
        let sequence = self.next_timer;
        self.timers.push(Reverse(Timer { at, sequence, waker }));
    }
}

/// A future that completes at an instant.
pub struct Sleep {
    sim: Sim,
    at: Nanos,
    registered: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sim = self.sim.clone();
        let mut state = sim.state.lock();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        // A future may move from one task to another while it waits.
        let known = self.registered.as_ref().is_some_and(|w| w.will_wake(context.waker()));
        if !known {
            state.set_timer(self.at, context.waker().clone());
            self.registered = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

/// A node's view of the simulation: a monotonic clock with its own start value, and a wall clock.
#[derive(Clone)]
pub struct NodeRuntime {
    sim: Sim,
    node: usize,
    /// The number of deaths of the node before this start.
    deaths: u64,
    clock_start: Nanos,
    wall_start: Nanos,
}

impl NodeRuntime {
    /// The runtime of `node`. At the start of the run its monotonic clock reads `clock_start` and its wall
    /// clock `wall_start`.
    pub fn new(sim: &Sim, node: usize, clock_start: Nanos, wall_start: Nanos) -> Self {
        NodeRuntime { sim: sim.clone(), node, deaths: sim.deaths(node), clock_start, wall_start }
    }
}

impl Runtime for NodeRuntime {
    fn now(&self) -> Nanos {
        self.clock_start.plus(self.sim.now())
    }

    fn wall(&self) -> Nanos {
        self.wall_start.plus(self.sim.now())
    }

    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static {
        self.sim.sleep(span)
    }

    /// A destructor that runs after the death of the node spawns nothing.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.deaths == self.sim.deaths(self.node) {
            self.sim.spawn(Some(self.node), task);
        }
    }

    fn random(&self) -> u64 {
        self.sim.with_rng(Rng::next_u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(seed: u64) -> Vec<(u64, u64)> {
        let (sim, log) = (Sim::new(seed), Arc::new(Mutex::new(Vec::new())));
        for task in 0..5 {
            let (own, log) = (sim.clone(), Arc::clone(&log));
            sim.spawn(Some(0), async move {
                for _ in 0..3 {
                    own.sleep(Nanos::new(own.with_rng(|rng| rng.below(10)))).await;
                    log.lock().push((own.now().get(), task));
                }
            });
        }
        sim.run_until(Nanos::from_secs(1));
        std::mem::take(&mut *log.lock())
    }

    #[test]
    fn a_seed_replays_and_other_seeds_differ() {
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
        assert!(trace(3).is_sorted_by_key(|(at, _)| *at));
        assert_eq!(trace(3).len(), 15);
    }

    #[test]
    fn tasks_of_a_paused_node_wait_and_those_of_a_dead_node_are_dropped() {
        let (sim, log) = (Sim::new(1), Arc::new(Mutex::new(Vec::new())));
        for node in 0..3 {
            let (own, log) = (sim.clone(), Arc::clone(&log));
            sim.spawn(Some(node), async move {
                own.sleep(Nanos::new(10)).await;
                log.lock().push((node, own.now().get()));
            });
        }
        sim.run_until(Nanos::new(5));
        sim.pause(1, Nanos::new(50));
        sim.kill(2);
        sim.run_until(Nanos::new(100));
        assert_eq!(*log.lock(), [(0, 10), (1, 50)]);
        assert_eq!(sim.now(), Nanos::new(100));
    }
}
