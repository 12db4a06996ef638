//! The task of one connection: sends all queued calls with one wait behind them, and replies.
//!
//! Invariant: nothing is sent while earlier writes are not durable, nor on a connection that cannot wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Pipeline;
use tidegate_core::store::UnacknowledgedError;
use tokio::sync::{mpsc, oneshot};

use super::super::connection::{ActiveConnection, RedisReply, SentCall, or_missing};
use super::super::error::RedisStoreError;
use super::super::redirect::SendMode;
use super::{DurabilityResult, DurableLine, DurableReplies};

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
    pub(super) line: Arc<DurableLine>,
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
                let error = self.line.connection.last_error().unwrap_or(RedisStoreError::NOT_CONNECTED);
                batch.into_iter().for_each(|job| job.fail(&error));
                continue;
            };
            // Nothing is charged on a connection that cannot wait.
            let known = self.checked.as_ref().is_some_and(|c| Arc::ptr_eq(c, &active));
            let able = if known { Ok(()) } else { self.line.wait.can_wait(&active, patience * 2 / 5).await };
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
            let connection = &self.line.connection;
            let is_connected = connection.server.gate.wait_until(|| connection.active().is_some());
            let _ = tokio::time::timeout(patience, is_connected).await;
        }
        self.line.connection.active()
    }

    /// Sends a batch and one wait behind it, and replies.
    async fn send(&self, active: &ActiveConnection, batch: Vec<Job>) -> DurabilityResult {
        let left = batch.iter().map(Job::remaining).min().unwrap_or_default();
        // The rest is for the network.
        let wait = (left * 4 / 5).min(self.line.max_wait);
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
        active.expect_block_for(wait);
        pipeline.add_command(self.line.wait.command(wait));
        let id = active.next_id();
        pipeline.add_command(id.ping());
        pipeline.ignore_errors();
        let mut replies = match active.send_all(&pipeline).await {
            Ok(replies) => replies,
            Err(error) => {
                batch.into_iter().for_each(|job| job.fail(&error));
                return Ok(());
            }
        };
        let (echo, count) = (or_missing(replies.pop()), or_missing(replies.pop()));
        let count = active.before_ping(id, echo, count);
        let durability = self.line.wait.wait_until(active, count, until).await;
        let mut replies = replies.into_iter();
        for job in batch {
            let own = job.take_replies(active, replies.by_ref());
            let _caller_stopped_waiting = job.reply_to.send(Ok((own, durability.clone())));
        }
        durability
    }

    /// Rejects all jobs until the writes are durable, or the connection has changed.
    async fn catch_up(&mut self, active: &Arc<ActiveConnection>, mut reason: UnacknowledgedError) {
        loop {
            self.line.unacknowledged.store(Some(Arc::new(reason.clone())));
            let is_connected = self.line.connection.active().is_some_and(|now| Arc::ptr_eq(&now, active));
            if !is_connected {
                break;
            }
            let rechecking = self.line.wait.recheck(active);
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
        self.line.unacknowledged.store(None);
    }
}

impl Job {
    fn remaining(&self) -> Duration {
        self.patience.saturating_sub(self.queued.elapsed())
    }

    /// Takes the replies to its own calls from the `replies` to the batch.
    fn take_replies(
        &self,
        active: &ActiveConnection,
        replies: &mut dyn Iterator<Item = RedisReply>,
    ) -> Vec<RedisReply> {
        let each = |call: &SentCall| {
            let reply = match self.mode {
                SendMode::Plain => or_missing(replies.next()),
                SendMode::Asking => or_missing(replies.next()).and(or_missing(replies.next())),
            };
            active.matching_reply(call.id, reply?)
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
