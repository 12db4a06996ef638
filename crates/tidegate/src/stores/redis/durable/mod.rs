//! Charges that must be safe elsewhere before they are told.
//!
//! `WAIT` and `WAITAOF` speak of the writes of the connection they are sent on, and block it. So such
//! charges travel on a connection of their own, opened when the first of them comes. A task takes all that
//! is queued, sends it in one go with one wait behind it, and answers all. When too few servers have
//! acknowledged, what was sent stays charged: too strict, never too lax. Nothing more is sent then: what
//! comes meanwhile is turned away at once and uncharged, and the connection is asked again and again
//! whether the writes have arrived since.

mod sender;
mod wait;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::Value;
use tidegate_core::store::{Charge, ChargeSet, Durability, StoreError, Unacknowledged};
use tidegate_core::units::Nanos;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::sender::{Job, Sender};
use self::wait::Wait;
use super::fault::{Action, Fault};
use super::gate::Gate;
use super::lane::{Lane, SentCall, keep};
use super::link::{Call, Link};
use super::redirect::Entry;
use super::reply::Reply;
use super::scripts::{self, Script};

/// How long a charge may wait that does not say: one that no rule has read.
const USUAL: Nanos = Nanos::from_millis(50);
/// Calls in the queue. More would be late anyway.
const MOST_QUEUED: usize = 4_096;

/// Whether what was sent is as safe as it must be.
pub(super) type Safe = Result<(), Unacknowledged>;

/// The answers to some calls, and whether they are safe; or why nothing was sent.
pub(super) type Answered = Result<(Vec<Result<Value, Fault>>, Safe), Unacknowledged>;

/// What some charges ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    wait: Wait,
    patience: Duration,
}

impl Need {
    /// What `charges` ask for, if `script` is one that must be waited for: what is put back after a loss
    /// is not, or a store whose last replica took over could never be believed.
    pub(super) fn of<'c, 'a: 'c>(
        script: Script,
        charges: impl IntoIterator<Item = &'c Charge<'a>>,
    ) -> Option<Need> {
        let waits = |charge: &&Charge<'_>| charge.terms.durability.waits();
        let mut need: Option<Need> = None;
        for charge in charges.into_iter().filter(waits) {
            let patience = charge.terms.budget.unwrap_or(USUAL).duration();
            let aof = charge.terms.durability == Durability::ReplicaAof
                || need.is_some_and(|need| need.wait == Wait::Aof);
            need = Some(Need {
                wait: if aof { Wait::Aof } else { Wait::Replica },
                patience: need.map_or(patience, |need| need.patience.min(patience)),
            });
        }
        need.filter(|_| script != scripts::SEED)
    }

    /// The same of a list, sent in one go.
    pub(super) fn of_each(script: Script, sets: &[&ChargeSet<'_>]) -> Option<Need> {
        Need::of(script, sets.iter().flat_map(|set| &set.charges))
    }
}

/// The error of the port for a charge that is not safe.
pub(super) fn unsafe_after(why: Unacknowledged, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}

/// What was not written need not be safe.
pub(super) fn confirm(reply: &Reply, safe: &Safe, began: Instant) -> Result<(), StoreError> {
    let wrote = reply.verdict().is_ok_and(|verdict| verdict > 0);
    match safe {
        Err(why) if wrote => Err(unsafe_after(why.clone(), Nanos::from(began.elapsed()))),
        _ => Ok(()),
    }
}

/// A connection for each kind of wait.
pub(super) struct SafeLanes {
    replica: SafeLane,
    aof: SafeLane,
}

impl SafeLanes {
    /// On lanes that nothing else uses and that are not kept yet. No wait lasts longer than most of
    /// `reply_timeout`.
    pub(super) fn new(
        lane: impl Fn() -> Arc<Lane>,
        gate: &Arc<Gate>,
        reply_timeout: Duration,
    ) -> Self {
        let of = |wait| SafeLane {
            lane: lane(),
            wait,
            gate: Arc::clone(gate),
            longest: reply_timeout * 4 / 5,
            why: Arc::default(),
            running: OnceLock::new(),
        };
        SafeLanes {
            replica: of(Wait::Replica),
            aof: of(Wait::Aof),
        }
    }

    /// Why charges are not acknowledged at present.
    pub(super) fn why(&self) -> Option<Unacknowledged> {
        let of = |lane: &SafeLane| lane.why.load().as_deref().cloned();
        of(&self.replica).or_else(|| of(&self.aof))
    }
}

impl Link {
    /// Runs scripts one after another in one go, and waits until they are as safe as `need` says.
    ///
    /// # Errors
    /// When nothing was sent, because what was sent before is not safe yet.
    pub(super) async fn call_safely(
        &self,
        calls: &[Call<'_>],
        need: Need,
        entry: Entry,
    ) -> Answered {
        if !self.gate().is_open() {
            let locked = |_: &Call<'_>| Err(Fault::not_connected(None));
            return Ok((calls.iter().map(locked).collect(), Ok(())));
        }
        let lane = match need.wait {
            Wait::Replica => &self.safe.replica,
            Wait::Aof => &self.safe.aof,
        };
        let sent = calls.iter().map(|call| self.by_hash(call, false));
        let (mut answers, mut safe) = lane.send(sent.collect(), need.patience, entry).await?;
        for (call, answer) in calls.iter().zip(&mut answers) {
            let unknown = |fault: &Fault| fault.action() == Action::SendText;
            if answer.as_ref().err().is_some_and(unknown) {
                let text = vec![self.by_text(call, false)];
                let (mut again, safe_too) = lane.send(text, need.patience, entry).await?;
                *answer = again.pop().unwrap_or(Err(Fault::not_connected(None)));
                safe = safe.and(safe_too);
            }
        }
        Ok((answers, safe))
    }
}

/// One connection and the queue before it.
struct SafeLane {
    lane: Arc<Lane>,
    wait: Wait,
    gate: Arc<Gate>,
    longest: Duration,
    why: Arc<ArcSwapOption<Unacknowledged>>,
    running: OnceLock<Running>,
}

struct Running {
    jobs: mpsc::Sender<Job>,
    tasks: [JoinHandle<()>; 2],
}

impl SafeLane {
    async fn send(&self, calls: Vec<SentCall>, patience: Duration, entry: Entry) -> Answered {
        let running = self.running.get_or_init(|| self.start());
        let (answer, answered) = oneshot::channel();
        let job = Job {
            calls,
            entry,
            queued: Instant::now(),
            patience,
            answer,
        };
        match running.jobs.try_send(job) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(turned_away())),
            Err(_) => Err(turned_away()),
        }
    }

    fn start(&self) -> Running {
        let (jobs, queue) = mpsc::channel(MOST_QUEUED);
        let sender = Sender {
            lane: Arc::clone(&self.lane),
            wait: self.wait,
            gate: Arc::clone(&self.gate),
            longest: self.longest,
            why: Arc::clone(&self.why),
            queue,
            checked: None,
        };
        let tasks = [
            tokio::spawn(keep(Arc::clone(&self.lane))),
            tokio::spawn(sender.run()),
        ];
        Running { jobs, tasks }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn turned_away() -> Unacknowledged {
    Unacknowledged("too many durable charges are waiting".to_owned())
}
