//! Shutdown in phases: not ready, still serving, no new connections, finished.
//!
//! SIGTERM and SIGINT start it. Signals that arrive within [`SIGNAL_DEBOUNCE`] of the first count as the same one
//! (a terminal and a supervisor often both send it); a later one ends the process at once. SIGHUP ends a process
//! that has a controlling terminal, because the terminal was closed; otherwise it triggers a reload.
//!
//! Invariant: phases only move forward, and the process ends by the deadline.

use std::fs::{self, File};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::net::{ShutdownHandle, ShutdownPhase, ShutdownWaiter};

/// Signals this close together count as one.
const SIGNAL_DEBOUNCE: Duration = Duration::from_millis(250);

/// How the shutdown ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShutdownOutcome {
    /// All requests finished.
    Clean,
    /// The deadline came first.
    TimedOut,
    /// A second signal came first.
    Forced,
}

/// The signals. They are registered before the listeners open, so that none is lost.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    hangup_action: SignalAction,
}

/// What to do on a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SignalAction {
    /// Shut down at once; a person at a terminal is waiting.
    StopNow,
    /// Shut down; a balancer has to notice first.
    Stop,
    Reload,
}

impl Signals {
    /// Registers the signal handlers.
    pub(crate) fn listen() -> std::io::Result<Self> {
        // Before the handler is registered: afterwards SIGHUP is no longer ignored.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup_action = SignalAction::of_hangup(File::open("/dev/tty"), &status);
        Ok(Signals {
            hangup_action,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that stops the service.
    pub(crate) async fn wait_for_stop(&mut self) {
        while self.next_action().await == SignalAction::Reload {}
    }

    async fn next_action(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.term.recv() => SignalAction::Stop,
            _ = self.int.recv() => SignalAction::StopNow,
            _ = self.hup.recv() => self.hangup_action,
        }
    }
}

impl SignalAction {
    /// The action for SIGHUP. It ends a process with a controlling terminal. A process that `nohup` started to outlive
    /// its terminal reloads, like a process without a terminal. `status` is empty on systems without `/proc`.
    fn of_hangup(terminal: std::io::Result<File>, status: &str) -> Self {
        if terminal.is_ok() && !is_hangup_ignored(status) { SignalAction::StopNow } else { SignalAction::Reload }
    }
}

/// Whether SIGHUP was ignored when the process began.
fn is_hangup_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) & 1 == 1
}

/// Runs until a signal stops the service, then shuts it down. `reload` is called at each SIGHUP until then.
pub(crate) async fn run_until_shutdown(
    mut signals: Signals,
    drain: ShutdownHandle,
    idle: ShutdownWaiter,
    delay: Duration,
    deadline: Duration,
    reload: impl Fn(),
) -> ShutdownOutcome {
    let action = loop {
        match signals.next_action().await {
            SignalAction::Reload => reload(),
            action => break action,
        }
    };
    let first = Instant::now();
    let delay = if action == SignalAction::StopNow { Duration::ZERO } else { delay };
    info!(delay_ms = delay.as_millis() as u64, "draining");
    tokio::select! {
        end = drain_connections(drain, idle, delay, deadline) => end,
        () = wait_for_second_signal(&mut signals, first) => ShutdownOutcome::Forced,
    }
}

async fn wait_for_second_signal(signals: &mut Signals, first: Instant) {
    loop {
        let action = signals.next_action().await;
        if action != SignalAction::Reload && first.elapsed() > SIGNAL_DEBOUNCE {
            warn!("second signal, leaving at once");
            return;
        }
    }
}

async fn drain_connections(
    drain: ShutdownHandle,
    ShutdownWaiter(mut idle): ShutdownWaiter,
    delay: Duration,
    deadline: Duration,
) -> ShutdownOutcome {
    drain.advance_to(ShutdownPhase::Draining);
    sleep(delay).await;
    drain.advance_to(ShutdownPhase::Closing);
    drop(drain);
    // Nothing is ever sent. This ends when the last connection drops its sender.
    match timeout(deadline, idle.recv()).await {
        Ok(_) => ShutdownOutcome::Clean,
        Err(_) => ShutdownOutcome::TimedOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_when_the_last_connection_has_finished() {
        let (drain, idle) = ShutdownHandle::new();
        let (busy, mut phases) = (drain.in_flight_guard(), drain.subscribe());
        let connection = tokio::spawn(async move {
            phases.wait_for(|phase| *phase == ShutdownPhase::Closing).await.unwrap();
            sleep(Duration::from_secs(3)).await;
            drop(busy);
        });
        let begun = Instant::now();
        let end = drain_connections(drain, idle, Duration::from_secs(1), Duration::from_secs(10)).await;
        assert_eq!(end, ShutdownOutcome::Clean);
        assert_eq!(begun.elapsed().as_secs(), 4);
        connection.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_by_the_deadline_even_if_a_connection_does_not_finish() {
        let (drain, idle) = ShutdownHandle::new();
        let _stuck = drain.in_flight_guard();
        let begun = Instant::now();
        let end = drain_connections(drain, idle, Duration::ZERO, Duration::from_secs(10)).await;
        assert_eq!(end, ShutdownOutcome::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 10);
    }

    #[test]
    fn a_hangup_ends_only_a_process_with_a_terminal() {
        let (ignored, default) = ("SigIgn:\t1", "SigIgn:\t0");
        for (path, status, want) in [
            ("/dev/null", default, SignalAction::StopNow),
            ("/dev/null", ignored, SignalAction::Reload),
            ("/dev/null/none", default, SignalAction::Reload),
            ("/dev/null/none", ignored, SignalAction::Reload),
        ] {
            assert_eq!(SignalAction::of_hangup(File::open(path), status), want);
        }
    }

    #[test]
    fn an_ignored_hangup_is_the_first_bit_of_the_mask() {
        let status = |mask| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_hangup_ignored(&status("0000000000001001")));
        assert!(!is_hangup_ignored(&status("0000000000001000")));
        assert!(!is_hangup_ignored(""));
    }

    #[test]
    fn a_phase_never_goes_back() {
        let (drain, _idle) = ShutdownHandle::new();
        drain.advance_to(ShutdownPhase::Closing);
        drain.advance_to(ShutdownPhase::Draining);
        assert_eq!(*drain.subscribe().borrow(), ShutdownPhase::Closing);
    }
}
