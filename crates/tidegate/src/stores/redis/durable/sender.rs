//! The task behind one connection: takes all that is queued, sends it with one wait behind it, answers.
//!
//! Keeps true: nothing is sent while what was sent before is not safe, nor on a connection that cannot
//! wait at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{Pipeline, Value};
use tidegate_core::store::Unacknowledged;
use tokio::sync::{mpsc, oneshot};

use super::super::fault::Fault;
use super::super::gate::Gate;
use super::super::lane::{Lane, Live, SentCall};
use super::super::redirect::Entry;
use super::wait::{Wait, asked_again, can_wait, judged};
use super::{Answered, Safe};

/// Commands sent in one go.
const MOST_AT_ONCE: usize = 1_024;

/// Commands of one caller.
pub(super) struct Job {
    pub(super) calls: Vec<SentCall>,
    /// How the server is asked for each of them.
    pub(super) entry: Entry,
    pub(super) queued: Instant,
    pub(super) patience: Duration,
    pub(super) answer: oneshot::Sender<Answered>,
}

/// What the task has.
pub(super) struct Sender {
    pub(super) lane: Arc<Lane>,
    pub(super) wait: Wait,
    pub(super) gate: Arc<Gate>,
    pub(super) longest: Duration,
    pub(super) why: Arc<ArcSwapOption<Unacknowledged>>,
    pub(super) queue: mpsc::Receiver<Job>,
    /// The connection of which it is known that it can wait.
    pub(super) checked: Option<Arc<Live>>,
}

impl Sender {
    pub(super) async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let batch = self.batch(first);
            let patience = batch.iter().map(Job::left).min().unwrap_or_default();
            let Some(live) = self.connection(patience).await else {
                let fault = self.lane.last_fault();
                batch.into_iter().for_each(|job| {
                    job.fail(&Fault::not_connected(fault.as_deref()));
                });
                continue;
            };
            // Nothing is charged on a connection that cannot wait at all.
            let known = self.checked.as_ref().is_some_and(|c| Arc::ptr_eq(c, &live));
            let able = if known {
                Ok(())
            } else {
                can_wait(&self.lane, &live, self.wait, patience * 2 / 5).await
            };
            let safe = match able {
                Ok(()) => self.send(&live, batch).await,
                Err(why) => {
                    batch.into_iter().for_each(|job| job.turn_away(&why));
                    Err(why)
                }
            };
            if let Err(why) = safe {
                self.catch_up(&live, why).await;
            }
            self.checked = Some(live);
        }
    }

    /// All that is queued behind `first`, as far as it goes at once.
    fn batch(&mut self, first: Job) -> Vec<Job> {
        let mut commands = first.calls.len();
        let mut batch = vec![first];
        while commands < MOST_AT_ONCE
            && let Ok(job) = self.queue.try_recv()
        {
            commands += job.calls.len();
            batch.push(job);
        }
        batch
    }

    /// The connection; the first time it is waited for.
    async fn connection(&self, patience: Duration) -> Option<Arc<Live>> {
        if self.checked.is_none() {
            let stands = self.gate.until(|| self.lane.live().is_some());
            let _ = tokio::time::timeout(patience, stands).await;
        }
        self.lane.live()
    }

    /// Sends a batch and one wait behind it, and answers.
    async fn send(&self, live: &Arc<Live>, batch: Vec<Job>) -> Safe {
        let left = batch.iter().map(Job::left).min().unwrap_or_default();
        // The rest is for the way.
        let wait = (left * 4 / 5).min(self.longest);
        let until = Instant::now() + wait;
        let mut pipeline = Pipeline::new();
        for job in &batch {
            for call in &job.calls {
                if job.entry == Entry::Asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(call.command.clone());
            }
        }
        self.lane.blocks_for(wait);
        pipeline.add_command(self.wait.command(wait));
        let id = self.lane.next_id();
        pipeline.add_command(id.ping());
        pipeline.ignore_errors();
        let mut answers = match self.lane.send_all(live, &pipeline).await {
            Ok(answers) => answers,
            Err(fault) => {
                batch.into_iter().for_each(|job| job.fail(&fault));
                return Ok(());
            }
        };
        let echo = answers.pop().unwrap_or(Err(Fault::not_connected(None)));
        let count = answers.pop().unwrap_or(Err(Fault::not_connected(None)));
        let count = self.lane.before_ping(live, id, echo, count);
        let count = self.wait.go_on(&self.lane, live, count, until).await;
        let safe = judged(&self.lane, live, self.wait, count).await;
        let mut answers = answers.into_iter();
        for job in batch {
            let own = job.own(&self.lane, live, answers.by_ref());
            let _nobody_waits_any_more = job.answer.send(Ok((own, safe.clone())));
        }
        safe
    }

    /// Turns all away until what was sent is safe, or the connection is another one.
    async fn catch_up(&mut self, live: &Arc<Live>, mut why: Unacknowledged) {
        loop {
            self.why.store(Some(Arc::new(why.clone())));
            let stands = self.lane.live().is_some_and(|now| Arc::ptr_eq(&now, live));
            if !stands {
                break;
            }
            let asking = asked_again(&self.lane, live, self.wait);
            tokio::pin!(asking);
            let answer = loop {
                tokio::select! {
                    answer = &mut asking => break answer,
                    Some(job) = self.queue.recv() => job.turn_away(&why),
                }
            };
            match answer {
                Ok(()) => break,
                Err(still) => why = still,
            }
        }
        self.why.store(None);
    }
}

impl Job {
    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.queued.elapsed())
    }

    /// What concerns it of the `answers` to all that was sent.
    fn own(
        &self,
        lane: &Lane,
        live: &Arc<Live>,
        answers: &mut dyn Iterator<Item = Result<Value, Fault>>,
    ) -> Vec<Result<Value, Fault>> {
        let each = |call: &SentCall| {
            let mut next = || answers.next().unwrap_or(Err(Fault::not_connected(None)));
            let reply = match self.entry {
                Entry::Plain => next(),
                Entry::Asking => next().and(next()),
            };
            lane.own_reply(live, call.id, reply?)
        };
        self.calls.iter().map(each).collect()
    }

    fn turn_away(self, why: &Unacknowledged) {
        let _nobody_waits_any_more = self.answer.send(Err(why.clone()));
    }

    fn fail(self, fault: &Fault) {
        let failed = self.calls.iter().map(|_| Err(fault.clone())).collect();
        let _nobody_waits_any_more = self.answer.send(Ok((failed, Ok(()))));
    }
}
