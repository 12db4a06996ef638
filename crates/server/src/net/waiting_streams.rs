//! The HTTP/2 streams of one listener that wait: for a body, for the store, or for their response to be
//! read.
//!
//! Invariant: the memory of all of them, as counted here, stays below a bound. A stream that finds the
//! bound reached evicts those that have waited longest. So clients that open streams and let them wait
//! cannot keep out clients that finish theirs. An evicted stream is reset. Its memory is free when its task has
//! ended, so connections read nothing more while many such tasks are left to run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate::observe::Metrics;
use tokio::sync::Notify;

/// The waiting streams of one listener.
pub(crate) struct WaitingStreams {
    max_bytes: usize,
    metrics: Arc<Metrics>,
    table: Mutex<WaitingTable>,
    /// Evicted streams whose tasks have not ended.
    leaving: AtomicUsize,
}

#[derive(Default)]
struct WaitingTable {
    bytes: usize,
    /// Streams entered so far. Their numbers order them by age.
    entered: u64,
    streams: BTreeMap<u64, (usize, Arc<Notify>)>,
}

/// One waiting stream, for as long as this exists.
pub(super) struct WaitingStream {
    table: Arc<WaitingStreams>,
    number: u64,
    evicted: Arc<Notify>,
}

impl WaitingStreams {
    /// What a waiting stream takes beside its head: its task, and its state in hyper and h2.
    pub(super) const STREAM_BYTES: usize = 8 << 10;

    /// What the waiting streams of one listener may take. With small heads that is 8,192 streams.
    pub(crate) const MAX_BYTES: usize = 64 << 20;

    pub(crate) fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(WaitingStreams {
            max_bytes,
            metrics,
            table: Mutex::default(),
            leaving: AtomicUsize::new(0),
        })
    }

    /// Adds a stream whose head takes `head_bytes`, and evicts the oldest ones if it must.
    pub(super) fn enter(this: &Arc<Self>, head_bytes: usize) -> WaitingStream {
        let bytes = Self::STREAM_BYTES + head_bytes;
        let evicted = Arc::new(Notify::new());
        let mut table = this.table.lock();
        table.bytes += bytes;
        while table.bytes > this.max_bytes
            && let Some((_, (bytes, evicted))) = table.streams.pop_first()
        {
            table.bytes -= bytes;
            this.metrics.network.streams_evicted.inc();
            this.leaving.fetch_add(1, Relaxed);
            evicted.notify_one();
        }
        table.entered += 1;
        let number = table.entered;
        table.streams.insert(number, (bytes, Arc::clone(&evicted)));
        WaitingStream {
            table: Arc::clone(this),
            number,
            evicted,
        }
    }

    /// Whether so many evicted streams still hold memory that no others are to be read.
    pub(super) fn is_behind(&self) -> bool {
        self.leaving.load(Relaxed) > MAX_LEAVING
    }
}

/// Evicted streams that may be left to run: a megabyte or two.
const MAX_LEAVING: usize = 256;

impl WaitingStream {
    /// Completes when newer streams need the room.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for WaitingStream {
    fn drop(&mut self) {
        let mut table = self.table.table.lock();
        if let Some((bytes, _)) = table.streams.remove(&self.number) {
            table.bytes -= bytes;
        } else {
            self.table.leaving.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    fn is_evicted(stream: &WaitingStream) -> bool {
        let mut evicted = std::pin::pin!(stream.evicted());
        let mut no_waker = Context::from_waker(Waker::noop());
        evicted.as_mut().poll(&mut no_waker).is_ready()
    }

    #[test]
    fn the_oldest_make_room_and_those_that_finish_leave_it() {
        let streams = WaitingStreams::new(3 * WaitingStreams::STREAM_BYTES, Arc::default());
        let enter = || WaitingStreams::enter(&streams, 0);
        let (first, second, third) = (enter(), enter(), enter());
        drop(second);
        let fourth = enter();
        assert!(!is_evicted(&first), "there was room");
        let fifth = enter();
        assert!(is_evicted(&first) && !is_evicted(&third));
        assert!(!is_evicted(&fourth) && !is_evicted(&fifth));
        // A large head takes the room of several.
        let large = WaitingStreams::enter(&streams, WaitingStreams::STREAM_BYTES);
        assert!(is_evicted(&third) && is_evicted(&fourth) && !is_evicted(&fifth));
        drop((first, third, fourth, fifth, large));
        assert_eq!(streams.metrics.network.streams_evicted.get(), 3);
        let table = streams.table.lock();
        assert!(table.bytes == 0 && table.streams.is_empty());
        assert_eq!(streams.leaving.load(Relaxed), 0);
    }

    /// The tasks of evicted streams ran after all that had arrived was read: half a gigabyte of them.
    #[test]
    fn nothing_more_is_read_while_many_evicted_streams_are_left() {
        let streams = WaitingStreams::new(WaitingStreams::STREAM_BYTES, Arc::default());
        let mut evicted: Vec<WaitingStream> = Vec::new();
        while !streams.is_behind() {
            evicted.push(WaitingStreams::enter(&streams, 0));
        }
        assert_eq!(evicted.len(), MAX_LEAVING + 2, "the last one waits");
        evicted.remove(0);
        assert!(!streams.is_behind());
    }
}
