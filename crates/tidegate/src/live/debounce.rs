//! When to look at files that may be changing.
//!
//! Hints come in bursts: one save is several changes, a deployment hundreds. A look follows once no hint has come
//! for a while, or, in a burst that does not end, after a bounded delay. An explicit poke causes a look at once.
//! Without hints there is a look now and then, for changes that a scan does not show. Knows nothing of files,
//! threads or clocks: time is an argument.
//!
//! Invariant: after a hint a look is due within `max_delay`, and hints alone never cause more than one look per
//! `quiet`.

use tidegate_core::units::Nanos;

use super::target::WatchTiming;

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextLook {
    /// Look at the files.
    Look,
    /// Wait until this instant, unless a hint or a poke comes.
    WaitUntil(Nanos),
}

/// Combines hints into looks.
#[derive(Clone, Debug)]
pub struct Debouncer {
    timing: WatchTiming,
    hints: Option<HintTimes>,
    poked: bool,
    looked_at: Nanos,
    poll: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct HintTimes {
    first: Nanos,
    last: Nanos,
}

impl Debouncer {
    /// A debouncer without hints, as if a look had just been made.
    pub fn new(timing: WatchTiming, now: Nanos) -> Self {
        Debouncer { timing, hints: None, poked: false, looked_at: now, poll: timing.poll }
    }

    /// Records that something may have changed.
    pub fn hint(&mut self, now: Nanos) {
        let first = self.hints.map_or(now, |hints| hints.first);
        self.hints = Some(HintTimes { first, last: now });
    }

    /// Requests a look.
    pub fn poke(&mut self) {
        self.poked = true;
    }

    /// A look begins. It serves all earlier hints and pokes, but no later ones.
    pub fn look_started(&mut self, now: Nanos) {
        (self.hints, self.poked, self.looked_at) = (None, false, now);
    }

    /// A look has ended. `is_fresh` means that its files had just changed, and selects the next poll.
    pub fn look_finished(&mut self, is_fresh: bool) {
        self.poll = if is_fresh { self.timing.fresh_poll } else { self.timing.poll };
    }

    /// The time until the next scan: shorter after a hint, to see whether more changes follow.
    pub fn scan_interval(&self) -> Nanos {
        let WatchTiming { scan_interval, quiet, .. } = self.timing;
        match self.hints {
            Some(_) => scan_interval.min(Nanos::new(quiet.get() / 4)),
            None => scan_interval,
        }
    }

    /// Whether to look now, and if not, when to call this again.
    pub fn next_look(&self, now: Nanos) -> NextLook {
        let WatchTiming { quiet, max_delay, .. } = self.timing;
        let due = match self.hints {
            _ if self.poked => now,
            Some(HintTimes { first, last }) => last.plus(quiet).min(first.plus(max_delay)),
            None => self.looked_at.plus(self.poll),
        };
        if due <= now { NextLook::Look } else { NextLook::WaitUntil(due) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs at most ten simulated minutes with hints at the given instants. Returns the instants of the looks up
    /// to `until_ms`.
    fn looks(hints_ms: impl IntoIterator<Item = u64>, until_ms: u64) -> Vec<u64> {
        let mut debouncer = Debouncer::new(WatchTiming::default(), Nanos::ZERO);
        let mut hints = hints_ms.into_iter().peekable();
        let mut looks = Vec::new();
        for now_ms in 0..=until_ms {
            let now = Nanos::from_millis(now_ms);
            while hints.next_if_eq(&now_ms).is_some() {
                debouncer.hint(now);
            }
            if debouncer.next_look(now) == NextLook::Look {
                debouncer.look_started(now);
                looks.push(now_ms);
            }
        }
        looks
    }

    #[test]
    fn a_burst_of_hints_causes_one_look_after_quiet() {
        assert_eq!(looks([1000], 5000), [1100]);
        assert_eq!(looks([1000, 1001, 1001, 1040, 1120], 5000), [1220]);
    }

    #[test]
    fn an_endless_burst_delays_a_look_by_400_ms_and_no_more() {
        assert_eq!(looks((1000..4000).step_by(10), 5000), [1400, 1810, 2220, 2630, 3040, 3450, 3860, 4090]);
    }

    #[test]
    fn separate_bursts_cause_separate_looks() {
        assert_eq!(looks([1000, 2000, 2050], 5000), [1100, 2150]);
    }

    #[test]
    fn a_poll_follows_silence() {
        assert_eq!(looks([], 90_000), [30_000, 60_000, 90_000]);
        assert_eq!(looks([10_000], 60_000), [10_100, 40_100], "counted from the last look");
    }

    #[test]
    fn files_that_had_just_changed_are_looked_at_again_soon() {
        let mut debouncer = Debouncer::new(WatchTiming::default(), Nanos::ZERO);
        for (is_fresh, next) in [(true, 3), (false, 30)] {
            debouncer.look_started(Nanos::ZERO);
            debouncer.look_finished(is_fresh);
            let next = Nanos::from_secs(next);
            assert_eq!(debouncer.next_look(Nanos::ZERO), NextLook::WaitUntil(next));
        }
    }

    #[test]
    fn after_a_hint_scans_follow_each_other_sooner() {
        let mut debouncer = Debouncer::new(WatchTiming::default(), Nanos::ZERO);
        assert_eq!(debouncer.scan_interval(), Nanos::from_millis(250));
        debouncer.hint(Nanos::ZERO);
        assert_eq!(debouncer.scan_interval(), Nanos::from_millis(25));
    }

    #[test]
    fn a_poke_is_followed_at_once() {
        let now = Nanos::from_secs(1);
        let mut debouncer = Debouncer::new(WatchTiming::default(), now);
        debouncer.hint(now);
        assert_eq!(debouncer.next_look(now), NextLook::WaitUntil(Nanos::from_millis(1100)));
        debouncer.poke();
        assert_eq!(debouncer.next_look(now), NextLook::Look);
        debouncer.look_started(now);
        assert_eq!(debouncer.next_look(now), NextLook::WaitUntil(Nanos::from_secs(31)));
    }

    #[test]
    fn a_hint_during_a_look_causes_another_look() {
        let mut debouncer = Debouncer::new(WatchTiming::default(), Nanos::ZERO);
        debouncer.hint(Nanos::from_millis(10));
        debouncer.look_started(Nanos::from_millis(110));
        debouncer.hint(Nanos::from_millis(130));
        assert_eq!(debouncer.next_look(Nanos::from_millis(140)), NextLook::WaitUntil(Nanos::from_millis(230)));
    }
}
