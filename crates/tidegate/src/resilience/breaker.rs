//! When to stop asking a store that does not answer, and when to ask again.
//!
//! Closed: calls pass. Open: none does; only pings from the background can close it. A brief glitch
//! does not open it, and one that keeps coming back keeps it open longer. Pure: results and time go
//! in, changes come out.

use tidegate_core::units::Nanos;

use super::settings::BreakerSettings;

/// The state of one store as its callers see it.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    open: bool,
    /// Failures in a row.
    failed: u32,
    recent: Recent,
    /// Good pings in a row since it opened.
    good: u32,
    /// Good pings asked for.
    needed: u32,
    closed_at: Option<Nanos>,
}

/// A change of a breaker, to be told once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It opened.
    Opened,
    /// It closed.
    Closed,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Breaker {
            settings,
            open: false,
            failed: 0,
            recent: Recent::default(),
            good: 0,
            needed: settings.good_pings,
            closed_at: None,
        }
    }

    /// Whether nothing may be asked.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A call was answered in time.
    pub fn succeeded(&mut self, now: Nanos) {
        self.failed = 0;
        self.recent.count(now, self.settings.window, false);
    }

    /// A call failed or was late.
    pub fn failed(&mut self, now: Nanos) -> Option<Change> {
        if self.open {
            return None; // was under way when it opened
        }
        self.failed += 1;
        self.recent.count(now, self.settings.window, true);
        let (calls, failures) = self.recent.sum();
        let half = calls >= self.settings.half_of && 2 * failures >= calls;
        if self.failed < self.settings.in_a_row && !half {
            return None;
        }
        let soon = |closed: Nanos| now.since(closed) <= self.settings.too_soon;
        self.needed = match self.closed_at.is_some_and(soon) {
            true => (self.needed * 2).min(self.settings.most_pings),
            false => self.settings.good_pings,
        };
        self.open = true;
        self.good = 0;
        Some(Change::Opened)
    }

    /// A ping was answered in time, or not. A good one says nothing of calls while they pass.
    pub fn pinged(&mut self, now: Nanos, good: bool) -> Option<Change> {
        match (self.open, good) {
            (false, true) => None,
            (false, false) => self.failed(now),
            (true, false) => {
                self.good = 0;
                None
            }
            (true, true) => {
                self.good += 1;
                if self.good < self.needed {
                    return None;
                }
                self.open = false;
                self.failed = 0;
                self.recent = Recent::default();
                self.closed_at = Some(now);
                Some(Change::Closed)
            }
        }
    }
}

const PARTS: usize = 10;

/// Calls and failures of the last while, in ten parts.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    part: u64,
    counts: [(u32, u32); PARTS],
}

impl Recent {
    fn count(&mut self, now: Nanos, window: Nanos, failed: bool) {
        let part = now.get() / (window.get() / PARTS as u64).max(1);
        let passed = part.saturating_sub(self.part).min(PARTS as u64);
        for gone in 0..passed {
            let at = (part - gone) % PARTS as u64;
            self.counts[at as usize] = (0, 0);
        }
        self.part = self.part.max(part);
        let (calls, failures) = &mut self.counts[(self.part % PARTS as u64) as usize];
        *calls += 1;
        *failures += u32::from(failed);
    }

    fn sum(&self) -> (u32, u32) {
        let add = |(c, f): (u32, u32), (calls, failures): &(u32, u32)| (c + calls, f + failures);
        self.counts.iter().fold((0, 0), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs words at 100 ms each: `+` a good call, `-` a bad one, `p` a good ping, `x` a bad one,
    /// `_` ten seconds of nothing. Answers with a letter per word: `.` closed, `O` open.
    #[track_caller]
    fn check(words: &str, want: &str) {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let mut now = Nanos::from_secs(1_000);
        let mut told = String::new();
        for word in words.chars() {
            now = now.plus(Nanos::from_millis(100));
            match word {
                '+' => breaker.succeeded(now),
                '-' => drop(breaker.failed(now)),
                'p' => drop(breaker.pinged(now, true)),
                'x' => drop(breaker.pinged(now, false)),
                '_' => now = now.plus(Nanos::from_secs(10)),
                other => panic!("{other}"),
            }
            told.push(if breaker.is_open() { 'O' } else { '.' });
        }
        assert_eq!(told, want, "{words}");
    }

    #[test]
    fn a_glitch_does_not_open_it_and_five_in_a_row_do() {
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
    fn only_pings_close_it_and_three_in_a_row() {
        check("-----+++ppp", "....OOOOOO.");
        check("-----ppxppp", "....OOOOOO.");
    }

    #[test]
    fn opening_again_soon_asks_for_twice_as_many_up_to_a_limit() {
        check("-----ppp-----pppppp", "....OOO.....OOOOOO.");
        let mut breaker = Breaker::new(BreakerSettings::default());
        let now = Nanos::from_secs(5);
        for want in [3, 6, 12, 24, 24] {
            while !breaker.is_open() {
                breaker.failed(now);
            }
            let mut pings = 0;
            while breaker.is_open() {
                breaker.pinged(now, true);
                pings += 1;
            }
            assert_eq!(pings, want);
        }
    }

    #[test]
    fn each_change_is_told_once() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let now = Nanos::from_secs(5);
        let changes = (0..9).filter_map(|_| breaker.failed(now));
        assert_eq!(changes.collect::<Vec<_>>(), [Change::Opened]);
        let changes = (0..9).filter_map(|_| breaker.pinged(now, true));
        assert_eq!(changes.collect::<Vec<_>>(), [Change::Closed]);
    }

    #[test]
    fn a_bad_ping_counts_while_it_is_closed() {
        check("xxxxx", "....O");
    }
}
