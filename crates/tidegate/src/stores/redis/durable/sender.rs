//! The task of one connection: sends all queued calls with one wait behind them, and replies.
//!
//! Invariant: nothing is sent while earlier writes are not durable, nor on a connection that cannot wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{Pipeline, Value};
use tidegate_core::store::UnacknowledgedError;
use tokio::sync::{mpsc, oneshot};

use super::super::connection::{ActiveConnection, ManagedConnection, SentCall};
use super::super::connection_gate::ConnectionGate;
use super::super::error::RedisStoreError;
use super::super::redirect::SendMode;
use super::wait::{WaitKind, can_wait, check_count, recheck};
use super::{DurabilityResult, DurableReplies};

/// The size of a batch, in commands, at which no further job is added.
const MAX_BATCH: usize = 1_024;

/// The calls of one caller.
pub(super) struct Job {
    pub(super) calls: Vec<SentCall>,
    /// How each of them is sent.
    pub(super) mode: SendMode,
    pub(super) queued: Instant,
    pub(super) patience: Duration,
    pub(super) reply_to: oneshot::Sender<DurableReplies>,
}

/// The state of the task.
pub(super) struct DurableSender {
    pub(super) connection: Arc<ManagedConnection>,
    pub(super) wait: WaitKind,
    pub(super) gate: Arc<ConnectionGate>,
    pub(super) max_wait: Duration,
    pub(super) unacknowledged: Arc<ArcSwapOption<UnacknowledgedError>>,
    pub(super) queue: mpsc::Receiver<Job>,
    /// The connection that was checked to support waiting.
    pub(super) checked: Option<Arc<ActiveConnection>>,
}

impl DurableSender {
    pub(super) async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let batch = self.batch(first);
            let patience = batch.iter().map(Job::remaining).min().unwrap_or_default();
            let Some(active) = self.connection(patience).await else {
                let error = self.connection.last_error();
                batch.into_iter().for_each(|job| {
                    job.fail(&RedisStoreError::not_connected(error.as_deref()));
                });
                continue;
            };
            // Nothing is charged on a connection that cannot wait.
            let known = self.checked.as_ref().is_some_and(|c| Arc::ptr_eq(c, &active));
            let able =
                if known { Ok(()) } else { can_wait(&self.connection, &active, self.wait, patience * 2 / 5).await };
            let durability = match able {
                Ok(()) => self.send(&active, batch).await,
                Err(reason) => {
                    batch.into_iter().for_each(|job| job.reject(&reason));
                    Err(reason)
                }
            };
            if let Err(reason) = durability {
                self.catch_up(&active, reason).await;
            }
            self.checked = Some(active);
        }
    }

    /// `first` and the jobs queued behind it, up to `MAX_BATCH`.
    fn batch(&mut self, first: Job) -> Vec<Job> {
        let mut commands = first.calls.len();
        let mut batch = vec![first];
        while commands < MAX_BATCH
            && let Ok(job) = self.queue.try_recv()
        {
            commands += job.calls.len();
            batch.push(job);
        }
        batch
    }

    /// The connection. Waits for it only the first time.
    async fn connection(&self, patience: Duration) -> Option<Arc<ActiveConnection>> {
        if self.checked.is_none() {
            let is_connected = self.gate.wait_until(|| self.connection.active().is_some());
            let _ = tokio::time::timeout(patience, is_connected).await;
        }
        self.connection.active()
    }

    /// Sends a batch and one wait behind it, and replies.
    async fn send(&self, active: &Arc<ActiveConnection>, batch: Vec<Job>) -> DurabilityResult {
        let left = batch.iter().map(Job::remaining).min().unwrap_or_default();
        // The rest is for the network.
        let wait = (left * 4 / 5).min(self.max_wait);
        let until = Instant::now() + wait;
        let mut pipeline = Pipeline::new();
        for job in &batch {
            for call in &job.calls {
                if job.mode == SendMode::Asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(call.command.clone());
            }
        }
        self.connection.expect_block_for(wait);
        pipeline.add_command(self.wait.command(wait));
        let id = self.connection.next_id();
        pipeline.add_command(id.ping());
        pipeline.ignore_errors();
        let mut replies = match self.connection.send_all(active, &pipeline).await {
            Ok(replies) => replies,
            Err(error) => {
                batch.into_iter().for_each(|job| job.fail(&error));
                return Ok(());
            }
        };
        let echo = replies.pop().unwrap_or(Err(RedisStoreError::not_connected(None)));
        let count = replies.pop().unwrap_or(Err(RedisStoreError::not_connected(None)));
        let count = self.connection.before_ping(active, id, echo, count);
        let count = self.wait.wait_until(&self.connection, active, count, until).await;
        let durability = check_count(&self.connection, active, self.wait, count).await;
        let mut replies = replies.into_iter();
        for job in batch {
            let own = job.take_replies(&self.connection, active, replies.by_ref());
            let _caller_stopped_waiting = job.reply_to.send(Ok((own, durability.clone())));
        }
        durability
    }

    /// Rejects all jobs until the writes are durable, or the connection has changed.
    async fn catch_up(&mut self, active: &Arc<ActiveConnection>, mut reason: UnacknowledgedError) {
        loop {
            self.unacknowledged.store(Some(Arc::new(reason.clone())));
            let is_connected = self.connection.active().is_some_and(|now| Arc::ptr_eq(&now, active));
            if !is_connected {
                break;
            }
            let rechecking = recheck(&self.connection, active, self.wait);
            tokio::pin!(rechecking);
            let result = loop {
                tokio::select! {
                    result = &mut rechecking => break result,
                    Some(job) = self.queue.recv() => job.reject(&reason),
                }
            };
            match result {
                Ok(()) => break,
                Err(still) => reason = still,
            }
        }
        self.unacknowledged.store(None);
    }
}

impl Job {
    fn remaining(&self) -> Duration {
        self.patience.saturating_sub(self.queued.elapsed())
    }

    /// Takes the replies to its own calls from the `replies` to the batch.
    fn take_replies(
        &self,
        connection: &ManagedConnection,
        active: &Arc<ActiveConnection>,
        replies: &mut dyn Iterator<Item = Result<Value, RedisStoreError>>,
    ) -> Vec<Result<Value, RedisStoreError>> {
        let each = |call: &SentCall| {
            let mut next = || replies.next().unwrap_or(Err(RedisStoreError::not_connected(None)));
            let reply = match self.mode {
                SendMode::Plain => next(),
                SendMode::Asking => next().and(next()),
            };
            connection.matching_reply(active, call.id, reply?)
        };
        self.calls.iter().map(each).collect()
    }

    fn reject(self, reason: &UnacknowledgedError) {
        let _caller_stopped_waiting = self.reply_to.send(Err(reason.clone()));
    }

    fn fail(self, error: &RedisStoreError) {
        let failed = self.calls.iter().map(|_| Err(error.clone())).collect();
        let _caller_stopped_waiting = self.reply_to.send(Ok((failed, Ok(()))));
    }
}
