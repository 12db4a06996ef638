//! Where log lines go: a bounded queue and a thread that writes it to standard error.
//!
//! Kept true: giving a line away never waits and never fails. A reader that has stopped, a full pipe
//! or a closed one costs lines, which are counted, and nothing else.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines waiting to be written: several seconds of a busy log, a few megabytes at most.
const QUEUE_CAPACITY: usize = 8192;
/// How long the end waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<LogMessage>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum LogMessage {
    Line(Vec<u8>),
    /// Answered when all before it is written.
    Flush(SyncSender<()>),
}

/// Takes one line per write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter;

/// A writer into the queue.
pub(crate) fn writer() -> LogWriter {
    LogWriter
}

/// Lines that did not fit.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Relaxed)
}

/// Waits, not for long, until what was logged so far is written.
pub(crate) fn flush() {
    let (done, flushed) = sync_channel(1);
    if queue().try_send(LogMessage::Flush(done)).is_ok() {
        // An error means that nobody reads: then there is nothing to wait for.
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
    fn lines_to_nowhere_are_counted_and_the_thread_goes_on() {
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
