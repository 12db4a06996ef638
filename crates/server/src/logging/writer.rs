//! The log queue: bounded, and written to standard error by a thread.
//!
//! Invariant: sending a line to the queue never waits and never fails. A reader that has stopped, a full pipe or a
//! closed pipe costs lines, which are counted, and nothing else.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines waiting to be written: several seconds of a busy log, a few megabytes at most.
const QUEUE_CAPACITY: usize = 8192;
/// How long the process waits for the last lines when it ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<LogMessage>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum LogMessage {
    Line(Vec<u8>),
    /// Acknowledged when every message before it is written.
    Flush(SyncSender<()>),
}

/// Sends each write to the queue as one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter;

/// Lines lost because the queue was full or the write failed.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Relaxed)
}

/// Waits until all lines logged so far are written, for [`FLUSH_TIMEOUT`] at most.
pub(crate) fn flush() {
    let (done, flushed) = sync_channel(1);
    if queue().try_send(LogMessage::Flush(done)).is_ok() {
        // An error means that the thread is gone or stuck: then there is nothing to wait for.
        let _ = flushed.recv_timeout(FLUSH_TIMEOUT);
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            queue().try_send(LogMessage::Line(line.to_vec()))
        {
            DROPPED.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn queue() -> &'static SyncSender<LogMessage> {
    QUEUE.get_or_init(|| {
        let (queue, lines) = sync_channel(QUEUE_CAPACITY);
        let thread = std::thread::Builder::new().name("tidegate-log".to_owned());
        // Without the thread the queue is disconnected and every line counts as dropped.
        let _ = thread.spawn(move || drain(&lines, io::stderr()));
        queue
    })
}

fn drain(lines: &Receiver<LogMessage>, mut to: impl Write) {
    while let Ok(message) = lines.recv() {
        match message {
            LogMessage::Line(line) => {
                if to.write_all(&line).is_err() {
                    DROPPED.fetch_add(1, Relaxed);
                }
            }
            LogMessage::Flush(done) => _ = done.try_send(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct BrokenPipeWriter;

    impl Write for BrokenPipeWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn failed_writes_are_counted_and_the_thread_continues() {
        let (queue, lines) = sync_channel(8);
        let before = dropped_lines();
        let (done, flushed) = sync_channel(1);
        for _ in 0..3 {
            queue.send(LogMessage::Line(b"x".to_vec())).unwrap();
        }
        queue.send(LogMessage::Flush(done)).unwrap();
        drop(queue);
        drain(&lines, BrokenPipeWriter);
        flushed.try_recv().unwrap();
        assert!(dropped_lines() >= before + 3);
    }
}
