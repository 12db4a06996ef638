//! Decides when a store is no longer called, and when it is called again.
//!
//! States: `Closed`, calls pass; `Failing`, opened by errors; `Silent`, opened by silence. While the breaker is
//! open no call passes and only pings are sent. Errors open it: several in a row, or half of many calls. Silence
//! opens it: requests are in flight and no reply of any kind arrives for a while. A late reply opens nothing: a
//! store that replies late is slow, not down.
//!
//! `Failing` closes after good pings, and needs more of them each time it opens again soon. `Silent` closes with
//! the first reply; if silence opens the breaker again soon, it becomes `Failing`, because a store that replies
//! seconds late would open and close it by turns.
//!
//! A pure state machine. Events, with the time: `sent`, `replied`, `failed`, `abandoned`, `unsent`, `ping_replied`,
//! `ping_failed`, `ping_missed`, `check_silence`. Effect: a [`BreakerChange`], once per change. Knows no store.

use tidegate_core::store::{FailureCause, FailureKind};
use tidegate_core::units::Nanos;

use crate::shard::settings::BreakerSettings;

/// The breaker of one store.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: BreakerState,
    /// Errors in a row.
    errors: u32,
    recent: RecentCalls,
    /// Good pings in a row that close the breaker.
    needed: u32,
    closed_at: Option<Nanos>,
    in_flight: u64,
    /// When the first request since the last reply was sent.
    silent_since: Option<Nanos>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BreakerState {
    Closed,
    /// Opened by errors. Good pings in a row since then.
    Failing {
        good: u32,
    },
    /// Opened by silence.
    Silent,
}

/// A change of a breaker, reported once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BreakerChange {
    /// It opened.
    Opened(FailureCause),
    /// It closed.
    Closed,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Breaker {
            settings,
            state: BreakerState::Closed,
            errors: 0,
            recent: RecentCalls::default(),
            needed: settings.good_pings,
            closed_at: None,
            in_flight: 0,
            silent_since: None,
        }
    }

    /// Whether calls are blocked.
    pub fn is_open(&self) -> bool {
        self.state != BreakerState::Closed
    }

    /// A request was sent: a call or a ping.
    pub fn sent(&mut self, now: Nanos) {
        self.in_flight += 1;
        self.silent_since.get_or_insert(now);
    }

    /// A reply to a call arrived, in time or late.
    pub fn replied(&mut self, now: Nanos) -> Option<BreakerChange> {
        self.request_ended(Some(now));
        if self.state == BreakerState::Silent {
            return Some(self.close(now));
        }
        self.errors = 0;
        self.recent.count(now, self.settings.window, false);
        None
    }

    /// A call ended with an error: the store returned one, or the connection is lost.
    pub fn failed(&mut self, now: Nanos, cause: impl FnOnce() -> FailureCause) -> Option<BreakerChange> {
        self.request_ended(Some(now));
        self.count_error(now, cause)
    }

    /// The caller no longer waits for the reply. That proves nothing about the store.
    pub fn abandoned(&mut self) {
        self.request_ended(None);
    }

    /// A request was not sent after all.
    pub fn unsent(&mut self) {
        self.request_ended(None);
        if self.in_flight == 0 {
            self.silent_since = None;
        }
    }

    /// A reply to a ping arrived, in time or late. While the breaker is closed, it proves nothing about calls.
    pub fn ping_replied(&mut self, now: Nanos) -> Option<BreakerChange> {
        self.request_ended(Some(now));
        match self.state {
            BreakerState::Closed => None,
            BreakerState::Silent => Some(self.close(now)),
            BreakerState::Failing { good } if good + 1 >= self.needed => Some(self.close(now)),
            BreakerState::Failing { good } => {
                self.state = BreakerState::Failing { good: good + 1 };
                None
            }
        }
    }

    /// A ping ended with an error.
    pub fn ping_failed(&mut self, now: Nanos, cause: impl FnOnce() -> FailureCause) -> Option<BreakerChange> {
        self.request_ended(Some(now));
        self.ping_missed();
        self.count_error(now, cause)
    }

    /// A ping is late. If its reply arrives later, it still counts.
    pub fn ping_missed(&mut self) {
        if let BreakerState::Failing { good } = &mut self.state {
            *good = 0;
        }
    }

    /// Opens the breaker if the store has been silent for too long.
    pub fn check_silence(&mut self, now: Nanos) -> Option<BreakerChange> {
        let silent = now.since(self.silent_since?);
        if self.is_open() || silent < self.settings.silence_timeout {
            return None;
        }
        if self.is_reopening(now) {
            self.open_for_pings(now);
        } else {
            self.state = BreakerState::Silent;
        }
        let text = format!(
            "timed out, no reply of any kind for {} ms: see whether the server hangs or the network \
             drops packets",
            silent.millis_up()
        );
        Some(BreakerChange::Opened(FailureCause::new(FailureKind::Silent, text)))
    }

    fn count_error(&mut self, now: Nanos, cause: impl FnOnce() -> FailureCause) -> Option<BreakerChange> {
        if self.is_open() {
            return None; // was in flight when it opened
        }
        self.errors += 1;
        self.recent.count(now, self.settings.window, true);
        let (calls, errors) = self.recent.sum();
        let half = calls >= self.settings.min_calls && 2 * errors >= calls;
        if self.errors < self.settings.consecutive_errors && !half {
            return None;
        }
        self.open_for_pings(now);
        Some(BreakerChange::Opened(cause()))
    }

    /// Whether it closed so recently that opening again means the same failure.
    fn is_reopening(&self, now: Nanos) -> bool {
        let soon = |closed: Nanos| now.since(closed) <= self.settings.reopen_window;
        self.closed_at.is_some_and(soon)
    }

    /// Opens the breaker until good pings close it.
    fn open_for_pings(&mut self, now: Nanos) {
        self.needed = if self.is_reopening(now) {
            (self.needed * 2).min(self.settings.max_pings)
        } else {
            self.settings.good_pings
        };
        self.state = BreakerState::Failing { good: 0 };
    }

    /// A request is no longer in flight. `replied_at` is when a reply or an error arrived, if either did.
    fn request_ended(&mut self, replied_at: Option<Nanos>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if replied_at.is_some() {
            self.silent_since = replied_at.filter(|_| self.in_flight > 0);
        }
    }

    fn close(&mut self, now: Nanos) -> BreakerChange {
        self.state = BreakerState::Closed;
        self.errors = 0;
        self.recent = RecentCalls::default();
        self.closed_at = Some(now);
        BreakerChange::Closed
    }
}

const BINS: usize = 10;

/// Calls and errors within the window, in ten bins.
#[derive(Clone, Copy, Debug, Default)]
struct RecentCalls {
    bin: u64,
    counts: [(u32, u32); BINS],
}

impl RecentCalls {
    fn count(&mut self, now: Nanos, window: Nanos, failed: bool) {
        let bin = now.get() / (window.get() / BINS as u64).max(1);
        let passed = bin.saturating_sub(self.bin).min(BINS as u64);
        for gone in 0..passed {
            let at = (bin - gone) % BINS as u64;
            self.counts[at as usize] = (0, 0);
        }
        self.bin = self.bin.max(bin);
        let (calls, errors) = &mut self.counts[(self.bin % BINS as u64) as usize];
        *calls = calls.saturating_add(1);
        *errors = errors.saturating_add(u32::from(failed));
    }

    fn sum(&self) -> (u32, u32) {
        let add =
            |(c, e): (u32, u32), (calls, errors): &(u32, u32)| (c.saturating_add(*calls), e.saturating_add(*errors));
        self.counts.iter().fold((0, 0), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause() -> FailureCause {
        FailureCause::new(FailureKind::Refused, "connection refused")
    }

    /// Runs events at 100 ms each: `+` a call with an immediate reply, `-` a call that fails, `s` a call that is
    /// sent, `r` a reply to it, `a` it is abandoned, `u` it was not sent after all, `p` a good ping, `x` a bad ping,
    /// `_` ten seconds without events, `.` nothing. Expects one letter per event: `.` closed, `O` open.
    #[track_caller]
    fn check(words: &str, want: &str) {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let mut now = Nanos::from_secs(1_000);
        let mut states = String::new();
        for word in words.chars() {
            now = now.plus(Nanos::from_millis(100));
            breaker.check_silence(now);
            if "+-px".contains(word) {
                breaker.sent(now);
            }
            match word {
                '+' | 'r' => drop(breaker.replied(now)),
                '-' => drop(breaker.failed(now, cause)),
                's' => breaker.sent(now),
                'a' => breaker.abandoned(),
                'u' => breaker.unsent(),
                'p' => drop(breaker.ping_replied(now)),
                'x' => drop(breaker.ping_failed(now, cause)),
                '_' => now = now.plus(Nanos::from_secs(10)),
                '.' => {}
                other => panic!("{other}"),
            }
            states.push(if breaker.is_open() { 'O' } else { '.' });
        }
        assert_eq!(states, want, "{words}");
    }

    #[test]
    fn a_glitch_does_not_open_it_and_five_errors_in_a_row_do() {
        check("----+----+", "..........");
        check("-----", "....O");
    }

    #[test]
    fn half_of_twenty_open_it() {
        check("-+-+-+-+-+-+-+-+-+--", "...................O");
        check("-+-+-+-+-+-+-+-+-+-+", "....................");
        check("-+-+-+-+-+-+-+-+-+_-+-", "......................");
    }

    #[test]
    fn after_errors_only_three_good_pings_in_a_row_close_it() {
        check("-----+++ppp", "....OOOOOO.");
        check("-----ppxppp", "....OOOOOO.");
    }

    /// Late replies opened it once, and a store that replied after 6 ms counted as down.
    #[test]
    fn late_replies_never_open_it() {
        check("ssssssssssrrrrrrrrrr", "....................");
        check("srsrsr.........srsr", "...................");
        // Each reply is 0.9 s late.
        check("s........rs........rs........r", &".".repeat(30));
    }

    #[test]
    fn a_second_without_any_reply_opens_it_and_any_reply_closes_it() {
        check("s.........", "..........");
        check("s..........", "..........O");
        check("ssssr..........", "..............O");
        check("s..........r", "..........O.");
        check("s...........p", "..........OO.");
        // An error is no reply.
        check("s..........-", "..........OO");
    }

    #[test]
    fn silence_needs_something_in_flight() {
        check("s+r............", "...............");
        check("+____", ".....");
    }

    /// With replies four seconds late, the breaker opened and closed by turns.
    #[test]
    fn silence_soon_after_silence_needs_good_pings() {
        check("s..........rs..........rpppppp", "..........O...........OOOOOOO.");
        check("s..........r__s..........r", "..........O.............O.");
    }

    /// An abandoned call is no sign that the store is alive.
    #[test]
    fn an_abandoned_call_does_not_end_the_silence() {
        check("sasasasasasa", "..........OO");
    }

    /// A store that this node has not joined yet is not silent.
    #[test]
    fn an_unsent_call_does_not_count_as_silence() {
        check("sususususususu", "..............");
        check("ssu.........", "..........OO");
    }

    #[test]
    fn opening_again_soon_needs_twice_as_many_pings_up_to_a_limit() {
        check("-----ppp-----pppppp", "....OOO.....OOOOOO.");
        let mut breaker = Breaker::new(BreakerSettings::default());
        let now = Nanos::from_secs(5);
        for want in [3, 6, 12, 24, 24] {
            while !breaker.is_open() {
                breaker.failed(now, cause);
            }
            let mut pings = 0;
            while breaker.is_open() {
                breaker.ping_replied(now);
                pings += 1;
            }
            assert_eq!(pings, want);
        }
    }

    #[test]
    fn each_change_is_reported_once_with_its_cause() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let now = Nanos::from_secs(5);
        let changes = (0..9).filter_map(|_| breaker.failed(now, cause));
        assert_eq!(changes.collect::<Vec<_>>(), [BreakerChange::Opened(cause())]);
        let changes = (0..9).filter_map(|_| breaker.ping_replied(now));
        assert_eq!(changes.collect::<Vec<_>>(), [BreakerChange::Closed]);
        breaker.sent(now);
        let later = now.plus(Nanos::from_millis(1_250));
        let silent = (0..9).filter_map(|_| breaker.check_silence(later));
        let silent: Vec<BreakerChange> = silent.collect();
        let [BreakerChange::Opened(cause)] = &silent[..] else {
            panic!("{silent:?}");
        };
        assert_eq!(cause.kind, FailureKind::Silent);
        let text = "no reply of any kind for 1250 ms";
        assert!(cause.text.contains(text), "{cause}");
    }

    #[test]
    fn a_bad_ping_counts_while_it_is_closed() {
        check("xxxxx", "....O");
    }
}
