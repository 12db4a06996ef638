//! The processor clock of one thread. It stands still while other processes have the core.

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread so far.
pub(crate) fn thread_cpu_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
