//! The end of the service, in order: not ready, still serving, no more connections, finished.
//!
//! SIGTERM and SIGINT begin it; signals that arrive within [`SAME`] of the first are the same one (a
//! terminal and a supervisor often both send it); a later one ends the process at once. SIGHUP ends a
//! process that has a controlling terminal, because that was closed, and else asks for a reload. Kept true:
//! phases only move forward, and the process ends by the deadline.

use std::fs::{self, File};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// Signals this close together are one.
const SAME: Duration = Duration::from_millis(250);

/// How far along the end is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// Not at all.
    Serving,
    /// `/readyz` says no, everything else goes on, connections are asked to close.
    Leaving,
    /// Nothing new; what is in flight is finished.
    Closing,
}

/// How the end went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Everything was finished.
    Clean,
    /// The deadline came first.
    Cut,
    /// A second signal came first.
    AtOnce,
}

/// What the parts of the service share about the end: a phase to watch, and a thing to hold while
/// work is in flight.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    phase: watch::Sender<Phase>,
    busy: mpsc::Sender<()>,
}

/// The other end of a [`Drain`]: knows when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct Idle(mpsc::Receiver<()>);

impl Drain {
    /// A service that is serving.
    pub(crate) fn new() -> (Self, Idle) {
        let (busy, idle) = mpsc::channel(1);
        (
            Drain {
                phase: watch::Sender::new(Phase::Serving),
                busy,
            },
            Idle(idle),
        )
    }

    /// Follows the phase.
    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// To be kept until a connection is finished.
    pub(crate) fn busy(&self) -> mpsc::Sender<()> {
        self.busy.clone()
    }

    fn move_to(&self, next: Phase) {
        self.phase.send_if_modified(|now| {
            let forward = next > *now;
            *now = next.max(*now);
            forward
        });
    }
}

/// The signals, listened to from before the listeners open so that none is lost.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    hangup: Wish,
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// End; a person at a terminal waits for it.
    EndNow,
    /// End; a balancer has to notice first.
    End,
    Reload,
}

impl Signals {
    /// Starts listening.
    pub(crate) fn listen() -> std::io::Result<Self> {
        // Before there is a handler: afterwards SIGHUP is no longer ignored.
        let hangup = Wish::of_hangup(Terminal::of_process(), Disposition::of_hangup());
        Ok(Signals {
            hangup,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until one asks for the end.
    pub(crate) async fn end(&mut self) {
        while self.next().await == Wish::Reload {}
    }

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.term.recv() => Wish::End,
            _ = self.int.recv() => Wish::EndNow,
            _ = self.hup.recv() => self.hangup,
        }
    }
}

/// Whether the process has a controlling terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Terminal {
    Controlling,
    None,
}

impl Terminal {
    fn of_process() -> Self {
        match File::open("/dev/tty") {
            Ok(_) => Terminal::Controlling,
            Err(_) => Terminal::None,
        }
    }
}

/// What a signal did when the process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Disposition {
    /// Nothing: `nohup` started the process.
    Ignored,
    Default,
}

impl Disposition {
    /// Of SIGHUP. Systems without `/proc` do not say.
    fn of_hangup() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Disposition::read(&status)
    }

    fn read(status: &str) -> Self {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        match mask.unwrap_or(0) & 1 {
            0 => Disposition::Default,
            _ => Disposition::Ignored,
        }
    }
}

impl Wish {
    /// What SIGHUP asks for. A process that was started to outlive its terminal reloads, like one that
    /// never had any.
    fn of_hangup(terminal: Terminal, disposition: Disposition) -> Self {
        match (terminal, disposition) {
            (Terminal::Controlling, Disposition::Default) => Wish::EndNow,
            _ => Wish::Reload,
        }
    }
}

/// Runs until a signal ends the service, then ends it. `reload` is called at each SIGHUP until then.
pub(crate) async fn until_ended(
    mut signals: Signals,
    drain: Drain,
    idle: Idle,
    delay: Duration,
    deadline: Duration,
    reload: impl Fn(),
) -> End {
    let wish = loop {
        match signals.next().await {
            Wish::Reload => reload(),
            wish => break wish,
        }
    };
    let first = Instant::now();
    let delay = if wish == Wish::EndNow {
        Duration::ZERO
    } else {
        delay
    };
    info!(delay_ms = delay.as_millis() as u64, "draining");
    tokio::select! {
        end = finish(drain, idle, delay, deadline) => end,
        () = second(&mut signals, first) => End::AtOnce,
    }
}

async fn second(signals: &mut Signals, first: Instant) {
    loop {
        let wish = signals.next().await;
        if wish != Wish::Reload && first.elapsed() > SAME {
            warn!("second signal, leaving at once");
            return;
        }
    }
}

async fn finish(drain: Drain, Idle(mut idle): Idle, delay: Duration, deadline: Duration) -> End {
    drain.move_to(Phase::Leaving);
    sleep(delay).await;
    drain.move_to(Phase::Closing);
    drop(drain);
    // Nothing is ever sent: this ends when the last connection lets go of its sender.
    match timeout(deadline, idle.recv()).await {
        Ok(_) => End::Clean,
        Err(_) => End::Cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_last_connection_has_finished() {
        let (drain, idle) = Drain::new();
        let (busy, mut phases) = (drain.busy(), drain.watch());
        let connection = tokio::spawn(async move {
            phases
                .wait_for(|phase| *phase == Phase::Closing)
                .await
                .unwrap();
            sleep(Duration::from_secs(3)).await;
            drop(busy);
        });
        let begun = Instant::now();
        let end = finish(drain, idle, Duration::from_secs(1), Duration::from_secs(10)).await;
        assert_eq!(end, End::Clean);
        assert_eq!(begun.elapsed().as_secs(), 4);
        connection.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_by_the_deadline_whatever_a_connection_does() {
        let (drain, idle) = Drain::new();
        let _stuck = drain.busy();
        let begun = Instant::now();
        let end = finish(drain, idle, Duration::ZERO, Duration::from_secs(10)).await;
        assert_eq!(end, End::Cut);
        assert_eq!(begun.elapsed().as_secs(), 10);
    }

    #[test]
    fn a_hangup_ends_only_what_lives_in_a_terminal() {
        for (terminal, disposition, want) in [
            (Terminal::Controlling, Disposition::Default, Wish::EndNow),
            (Terminal::Controlling, Disposition::Ignored, Wish::Reload),
            (Terminal::None, Disposition::Default, Wish::Reload),
            (Terminal::None, Disposition::Ignored, Wish::Reload),
        ] {
            assert_eq!(Wish::of_hangup(terminal, disposition), want);
        }
    }

    #[test]
    fn an_ignored_hangup_is_the_first_bit_of_the_mask() {
        let status = |mask| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        let read = |mask| Disposition::read(&status(mask));
        assert_eq!(read("0000000000001001"), Disposition::Ignored);
        assert_eq!(read("0000000000001000"), Disposition::Default);
        assert_eq!(Disposition::read(""), Disposition::Default);
    }

    #[test]
    fn a_phase_never_goes_back() {
        let (drain, _idle) = Drain::new();
        drain.move_to(Phase::Closing);
        drain.move_to(Phase::Leaving);
        assert_eq!(*drain.watch().borrow(), Phase::Closing);
    }
}
