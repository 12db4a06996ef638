//! The conditions under which decisions are timed.

use std::fmt;

use crate::keys::{self, Pattern};
use crate::timing::CallStyle;

/// The threads that visit the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One thread.
    One,
    /// Two threads that visit the same keys.
    TwoOnSameKeys,
    /// Two threads, each with half of the keys to itself.
    TwoOnDifferentKeys,
}

/// The expected decisions of the limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedDecisions {
    /// Every decision admits and so writes state.
    Admits,
    /// Nearly every decision denies.
    Denies,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LibraryScenario {
    /// The number of keys.
    pub(crate) keys: usize,
    /// How often each is visited.
    pub(crate) pattern: Pattern,
    /// The threads that visit them.
    pub(crate) threads: Threads,
    /// One by one or in batches.
    pub(crate) calls: CallStyle,
    /// The expected decisions.
    pub(crate) decisions: ExpectedDecisions,
}

impl LibraryScenario {
    /// One thread that visits keys uniformly, one by one, and is admitted.
    pub(crate) const fn plain(keys: usize) -> Self {
        let (pattern, threads) = (Pattern::Uniform, Threads::One);
        LibraryScenario { keys, pattern, threads, calls: CallStyle::Singly, decisions: ExpectedDecisions::Admits }
    }

    /// Every scenario with this many keys, in the order of the table. With one key there is only one
    /// pattern and nothing to divide.
    pub(crate) fn all_with(keys: usize) -> Vec<Self> {
        let plain = LibraryScenario::plain(keys);
        let mut all = Vec::new();
        for pattern in [Pattern::Uniform, Pattern::Zipf] {
            for threads in [Threads::One, Threads::TwoOnSameKeys] {
                for calls in [CallStyle::Singly, CallStyle::Batches] {
                    all.push(LibraryScenario { pattern, threads, calls, ..plain });
                }
            }
        }
        if keys == 1 {
            all.retain(|scenario| scenario.pattern == Pattern::Uniform);
        } else {
            all.push(LibraryScenario { threads: Threads::TwoOnDifferentKeys, ..plain });
        }
        all
    }

    /// The order of visits of each thread.
    pub(crate) fn orders(&self) -> Vec<Vec<u32>> {
        match self.threads {
            Threads::One => vec![keys::order(self.pattern, self.keys, 1)],
            Threads::TwoOnSameKeys => {
                vec![keys::order(self.pattern, self.keys, 1), keys::order(self.pattern, self.keys, 2)]
            }
            Threads::TwoOnDifferentKeys => {
                (0..2).map(|subset| keys::order_of_subset(self.keys, subset, 2, 1 + subset as u64)).collect()
            }
        }
    }
}

impl fmt::Display for LibraryScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keys {
            1 => f.write_str("1 key")?,
            1_000 => f.write_str("1k keys")?,
            1_000_000 => f.write_str("1M keys")?,
            keys => write!(f, "{keys} keys")?,
        }
        if self.keys > 1 {
            f.write_str(match self.pattern {
                Pattern::Uniform => ", uniform",
                Pattern::Zipf => ", Zipf",
            })?;
        }
        f.write_str(match self.threads {
            Threads::One => ", 1 thread",
            Threads::TwoOnSameKeys => ", 2 threads",
            Threads::TwoOnDifferentKeys => ", 2 threads apart",
        })?;
        f.write_str(match self.calls {
            CallStyle::Singly => "",
            CallStyle::Batches => ", by 16",
        })?;
        f.write_str(match self.decisions {
            ExpectedDecisions::Admits => "",
            ExpectedDecisions::Denies => ", denied",
        })
    }
}
