//! Hostile input for parsers, mutated from valid input by a seed.
//!
//! A [`FuzzTarget`] feeds a parser valid examples with a few mutations in each. Every input depends only on
//! the seed and its own number, so a failure can be reproduced from its output. Invariant: no input costs a
//! parser more work than [`MAX_WORK_UNITS`]. The test of each parser states the required behaviour; this
//! crate knows no parser.

pub mod inputs;
mod mutate;
mod rng;
mod work_measure;

use std::time::{Duration, Instant};

pub use rng::FuzzRng;
pub use work_measure::work_units;

/// The maximum work of one input, in work units. The most expensive of all is 6, for the rules parser.
pub const MAX_WORK_UNITS: f64 = 20.0;

/// An input that is parsed within this time is cheap, however busy the machine is. The work of any other
/// input is measured.
const CHEAP_TIME: Duration = Duration::from_millis(5);

/// The encoding of numbers in a language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NumberEncoding {
    /// Decimal digits.
    Digits,
    /// Binary, with length prefixes, as in Protocol Buffers.
    Varint,
}

/// The inputs for one parser.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget<'c> {
    /// The name of the parser, for the report.
    pub parser: &'c str,
    /// The seed. The same seed gives the same inputs.
    pub seed: u64,
    /// The number of inputs.
    pub inputs: u32,
    /// Valid input with an example of every feature of the parser.
    pub corpus: &'c [&'c [u8]],
    /// Tokens of the language.
    pub tokens: &'c [&'c [u8]],
    /// Delimiters of nested structures: opening and closing.
    pub delimiters: &'c [(&'c [u8], &'c [u8])],
    /// The encoding of numbers.
    pub numbers: NumberEncoding,
    /// The maximum length of an input, in bytes.
    pub max_len: usize,
}

/// The outcome of a fuzz run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FuzzOutcome {
    /// The number of inputs that the parser accepted.
    pub accepted: u32,
    /// The number of inputs whose work was measured.
    pub measured: u32,
    /// The maximum work of a measured input, in work units.
    pub max_work: f64,
}

impl FuzzTarget<'_> {
    /// Input number `number`.
    pub fn input(&self, number: u32) -> Vec<u8> {
        let mut rng = FuzzRng::of(self.seed, number);
        let mut input = rng.pick(self.corpus).to_vec();
        for _ in 0..=rng.below(4) {
            mutate::mutate(self, &mut rng, &mut input);
            input.truncate(self.max_len);
        }
        input
    }

    /// Passes every input to `accepts`, the parser whose work is measured, and every accepted input to
    /// `check`, which asserts its invariants at any cost.
    ///
    /// # Panics
    ///
    /// If the parser panics, if an input costs too much work, or if the parser accepts almost no input: then
    /// the mutations are too strong to test much. The output starts with the seed and the input.
    pub fn run(&self, mut accepts: impl FnMut(&[u8]) -> bool, mut check: impl FnMut(&[u8])) -> FuzzOutcome {
        let mut outcome = FuzzOutcome { accepted: 0, measured: 0, max_work: 0.0 };
        for number in 0..self.inputs {
            let input = self.input(number);
            let on_panic = PrintInputOnPanic { target: self, number, input: &input };
            let begun = Instant::now();
            let accepted = accepts(&input);
            if begun.elapsed() > CHEAP_TIME {
                let work = work_units(|| _ = accepts(&input));
                outcome.measured += 1;
                outcome.max_work = outcome.max_work.max(work);
                assert!(work <= MAX_WORK_UNITS, "{work:.1} work units");
            }
            if accepted {
                outcome.accepted += 1;
                check(&input);
            }
            drop(on_panic);
        }
        assert!(
            outcome.accepted >= self.inputs / 100,
            "{}: {outcome:?} of {} inputs: too few accepted to test much",
            self.parser,
            self.inputs
        );
        outcome
    }
}

/// Prints the input of a failed test.
struct PrintInputOnPanic<'a> {
    target: &'a FuzzTarget<'a>,
    number: u32,
    input: &'a [u8],
}

impl Drop for PrintInputOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let FuzzTarget { parser, seed, .. } = self.target;
            let input = self.input.escape_ascii();
            eprintln!("{parser}: seed {seed:#x}, input {}: b\"{input}\"", self.number);
        }
    }
}

#[cfg(test)]
mod tests;
