//! Decides when a silent connection is replaced.
//!
//! A connection can be lost without a sign: a firewall forgets it, or its host vanishes. Nothing closes
//! it, so only silence shows the loss. A server that pauses is silent too, and its late replies are worth
//! waiting for. A ping without a reply therefore opens a second connection beside the first. If the second
//! connection is ready first, the first is dead and is replaced. If the first one replies, it stays.
//!
//! A pure state machine: events and the time go in, effects come out. Invariants: at most one ping and at
//! most one second connection are in flight; a connection that replies is never replaced.

use std::time::{Duration, Instant};

/// The pause between a reply and the next ping.
const PING_EVERY: Duration = Duration::from_millis(300);
/// How long a ping may take. With `PING_EVERY` and the time to connect, a lost connection is replaced
/// within 2 s, and the breaker has time for its own pings within them.
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// The timeout doubles up to this on a server that replies late: it is slow, and connections are no cure.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a second connection is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// What is known about one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    state: PingState,
    timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PingState {
    /// The server replied to the last ping.
    Idle { ping_at: Instant },
    /// A ping is in flight.
    Waiting { sent: Instant, until: Instant },
    /// The ping took too long, and a second connection is being opened.
    Replacing { sent: Instant },
    /// A second connection could not be opened.
    Pausing { sent: Instant, retry_at: Instant },
}

/// What the owner of the connection does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LivenessEffect {
    /// Nothing.
    None,
    /// Send a ping.
    Ping,
    /// Open a second connection.
    Connect,
    /// Stop opening it.
    StopConnecting,
    /// Close the first connection although there is no second one.
    GiveUp,
}

/// What a failed attempt to open a second connection shows about the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Evidence {
    /// There was no reply. The server may only pause.
    Silence,
    /// The server, or its host, replied. So the first connection is lost.
    Reply,
}

impl Liveness {
    /// A connection that has just been opened.
    pub(super) fn new(now: Instant) -> Self {
        Liveness { state: PingState::Idle { ping_at: now + PING_EVERY }, timeout: PING_TIMEOUT }
    }

    /// When `timer` is to be called next.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        match self.state {
            PingState::Idle { ping_at } => Some(ping_at),
            PingState::Waiting { until, .. } => Some(until),
            PingState::Replacing { .. } => None,
            PingState::Pausing { retry_at, .. } => Some(retry_at),
        }
    }

    /// The time has come. `blocked_until` is when the server has finished a command that blocks the
    /// connection on purpose: no ping is late before that.
    pub(super) fn timer(&mut self, now: Instant, blocked_until: Option<Instant>) -> LivenessEffect {
        if self.wakes_at().is_none_or(|at| now < at) {
            return LivenessEffect::None;
        }
        match self.state {
            PingState::Idle { .. } => {
                let until = now + self.timeout;
                self.state = PingState::Waiting { sent: now, until };
                LivenessEffect::Ping
            }
            PingState::Waiting { sent, .. } => {
                let until = blocked_until.map(|at| at + self.timeout);
                if let Some(until) = until.filter(|until| now < *until) {
                    self.state = PingState::Waiting { sent, until };
                    return LivenessEffect::None;
                }
                self.state = PingState::Replacing { sent };
                LivenessEffect::Connect
            }
            PingState::Pausing { sent, .. } => {
                self.state = PingState::Replacing { sent };
                LivenessEffect::Connect
            }
            PingState::Replacing { .. } => LivenessEffect::None,
        }
    }

    /// The server replied to the ping, with a result or with an error.
    pub(super) fn replied(&mut self, now: Instant) -> LivenessEffect {
        let (sent, effect) = match self.state {
            PingState::Idle { .. } => return LivenessEffect::None,
            PingState::Waiting { sent, .. } | PingState::Pausing { sent, .. } => (sent, LivenessEffect::None),
            PingState::Replacing { sent } => (sent, LivenessEffect::StopConnecting),
        };
        let took = now.saturating_duration_since(sent);
        self.timeout = (took * 2).clamp(PING_TIMEOUT, MAX_PING_TIMEOUT);
        self.state = PingState::Idle { ping_at: now + PING_EVERY };
        effect
    }

    /// The client library has stopped waiting for the ping. It is sent again, and counts as the same.
    pub(super) fn ping_expired(&self) -> LivenessEffect {
        match self.state {
            PingState::Idle { .. } => LivenessEffect::None,
            PingState::Waiting { .. } | PingState::Replacing { .. } | PingState::Pausing { .. } => LivenessEffect::Ping,
        }
    }

    /// The second connection could not be opened.
    pub(super) fn connect_failed(&mut self, now: Instant, evidence: Evidence) -> LivenessEffect {
        match (self.state, evidence) {
            (PingState::Replacing { .. }, Evidence::Reply) => LivenessEffect::GiveUp,
            (PingState::Replacing { sent }, Evidence::Silence) => {
                let retry_at = now + RETRY_AFTER;
                self.state = PingState::Pausing { sent, retry_at };
                LivenessEffect::None
            }
            _ => LivenessEffect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Drives a connection from its opening, by hand.
    struct PingDriver {
        began: Instant,
        liveness: Liveness,
    }

    impl PingDriver {
        fn new() -> PingDriver {
            let began = Instant::now();
            let liveness = Liveness::new(began);
            PingDriver { began, liveness }
        }

        /// Lets the next timer fire; its effect and when it fired, in milliseconds since the opening.
        fn fire(&mut self) -> (u128, LivenessEffect) {
            let at = self.liveness.wakes_at().unwrap();
            let effect = self.liveness.timer(at, None);
            (at.duration_since(self.began).as_millis(), effect)
        }

        fn at(&self, millis: u64) -> Instant {
            self.began + ms(millis)
        }
    }

    /// It took 18 to 25 s: three pings of up to 5 s each had to fail first.
    #[test]
    fn a_connection_that_is_lost_at_any_moment_is_replaced_within_two_seconds() {
        for lost_after_reply in [0, 1, 150, 299, 300] {
            let mut driver = PingDriver::new();
            assert_eq!(driver.fire(), (300, LivenessEffect::Ping));
            driver.liveness.replied(driver.at(301));
            let lost = 301 + lost_after_reply;
            assert_eq!(driver.fire(), (601, LivenessEffect::Ping));
            let (at, effect) = driver.fire();
            assert_eq!(effect, LivenessEffect::Connect);
            assert!(at - lost <= 1_000, "{at}: a second is left to connect");
        }
    }

    #[test]
    fn a_connection_that_replies_is_never_replaced() {
        let mut driver = PingDriver::new();
        let mut now = 0;
        for took in [1, 499, 0, 300, 499] {
            assert_eq!(driver.fire(), (now + 300, LivenessEffect::Ping));
            now += 300 + took;
            let early = driver.at(u64::try_from(now).unwrap());
            assert_eq!(driver.liveness.timer(early, None), LivenessEffect::None);
            assert_eq!(driver.liveness.replied(early), LivenessEffect::None);
        }
    }

    /// A server that pauses replies on the first connection when it continues. Its late replies count.
    #[test]
    fn a_server_that_pauses_keeps_its_connection() {
        let mut driver = PingDriver::new();
        driver.fire();
        assert_eq!(driver.fire(), (800, LivenessEffect::Connect));
        let failed = driver.at(1_800);
        let after = driver.liveness.connect_failed(failed, Evidence::Silence);
        assert_eq!(after, LivenessEffect::None);
        assert_eq!(driver.fire(), (2_050, LivenessEffect::Connect));
        let reply = driver.at(3_000);
        assert_eq!(driver.liveness.replied(reply), LivenessEffect::StopConnecting);
        assert_eq!(driver.fire(), (3_300, LivenessEffect::Ping));
    }

    #[test]
    fn a_reply_to_the_second_connection_shows_that_the_first_is_lost() {
        let mut driver = PingDriver::new();
        driver.fire();
        driver.fire();
        let failed = driver.at(900);
        let after = driver.liveness.connect_failed(failed, Evidence::Reply);
        assert_eq!(after, LivenessEffect::GiveUp);
    }

    /// `WAIT` blocks its connection, and a ping behind it waits too.
    #[test]
    fn a_command_that_blocks_on_purpose_does_not_count_as_silence() {
        let mut driver = PingDriver::new();
        driver.fire();
        let blocked = Some(driver.at(2_000));
        let early = driver.at(800);
        assert_eq!(driver.liveness.timer(early, blocked), LivenessEffect::None);
        assert_eq!(driver.liveness.wakes_at(), Some(driver.at(2_500)));
        assert_eq!(driver.fire(), (2_500, LivenessEffect::Connect));
    }

    #[test]
    fn a_slow_server_is_given_more_time_up_to_a_bound() {
        let mut driver = PingDriver::new();
        driver.fire();
        driver.fire();
        driver.liveness.replied(driver.at(1_000));
        assert_eq!(driver.fire(), (1_300, LivenessEffect::Ping));
        assert_eq!(driver.fire(), (2_300, LivenessEffect::Connect));
        driver.liveness.replied(driver.at(9_000));
        assert_eq!(driver.fire(), (9_300, LivenessEffect::Ping));
        assert_eq!(driver.fire(), (10_300, LivenessEffect::Connect));
    }

    #[test]
    fn a_ping_that_the_client_gave_up_is_sent_again_and_counts_as_the_same() {
        let mut driver = PingDriver::new();
        assert_eq!(driver.liveness.ping_expired(), LivenessEffect::None);
        driver.fire();
        assert_eq!(driver.liveness.ping_expired(), LivenessEffect::Ping);
        assert_eq!(driver.fire(), (800, LivenessEffect::Connect));
        assert_eq!(driver.liveness.ping_expired(), LivenessEffect::Ping);
    }
}
