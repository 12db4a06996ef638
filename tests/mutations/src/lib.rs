//! Hostile input for parsers, made from good input by a seed.
//!
//! An [`FuzzTarget`] gives a parser good examples with a few things wrong in each. Every input follows from
//! the seed and its own number, so a failure can be made again from what it prints. Kept true: no input is
//! more work for a parser than [`MAX_WORK_UNITS`]. What a parser must do with an input is said by its own
//! test; nothing here knows any.

pub mod inputs;
mod mutate;
mod rng;
mod work_measure;

use std::time::{Duration, Instant};

pub use rng::FuzzRng;
pub use work_measure::work_units;

/// The most work that one input may be for a parser. The dearest of all is 6 for the rules parser.
pub const MAX_WORK_UNITS: f64 = 20.0;

/// An input that is read within this is little work, however busy the machine is. The work of any other is
/// counted.
const CHEAP_TIME: Duration = Duration::from_millis(5);

/// How numbers are written in a language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NumberEncoding {
    /// In digits.
    Digits,
    /// In bytes, and lengths stand before what they measure, as in protocol buffers.
    Varint,
}

/// Inputs for one parser.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget<'c> {
    /// What is attacked, for the report.
    pub parser: &'c str,
    /// The same seed gives the same inputs.
    pub seed: u64,
    /// How many.
    pub inputs: u32,
    /// Good input, some of everything that the parser knows.
    pub corpus: &'c [&'c [u8]],
    /// What the language is made of.
    pub tokens: &'c [&'c [u8]],
    /// What may stand within itself: how it opens, and how it closes.
    pub delimiters: &'c [(&'c [u8], &'c [u8])],
    /// How numbers are written.
    pub numbers: NumberEncoding,
    /// The longest input.
    pub max_len: usize,
}

/// What came of an attack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FuzzOutcome {
    /// How many inputs the parser took for good.
    pub accepted: u32,
    /// How many inputs were not surely little work.
    pub measured: u32,
    /// The most work that one of those was, in yardsticks.
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

    /// Gives every input to `accepts`, which is the parser and whose work is counted; those it accepts to
    /// `check`, which says what must be true of them, at any cost.
    ///
    /// # Panics
    /// If the parser does, if an input is too much work for it, or if it accepts next to nothing: then the
    /// inputs are too wild to test much. What is printed begins with the seed and the input.
    pub fn run(
        &self,
        mut accepts: impl FnMut(&[u8]) -> bool,
        mut check: impl FnMut(&[u8]),
    ) -> FuzzOutcome {
        let mut outcome = FuzzOutcome {
            accepted: 0,
            measured: 0,
            max_work: 0.0,
        };
        for number in 0..self.inputs {
            let input = self.input(number);
            let on_panic = PrintInputOnPanic {
                target: self,
                number,
                input: &input,
            };
            let begun = Instant::now();
            let accepted = accepts(&input);
            if begun.elapsed() > CHEAP_TIME {
                let work = work_units(|| _ = accepts(&input));
                outcome.measured += 1;
                outcome.max_work = outcome.max_work.max(work);
                assert!(work <= MAX_WORK_UNITS, "{work:.1} yardsticks of work");
            }
            if accepted {
                outcome.accepted += 1;
                check(&input);
            }
            drop(on_panic);
        }
        assert!(
            outcome.accepted >= self.inputs / 100,
            "{}: {outcome:?} of {} is too wild to test much",
            self.parser,
            self.inputs
        );
        outcome
    }
}

/// Tells the input that a test failed on.
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
            eprintln!(
                "{parser}: seed {seed:#x}, input {}: b\"{input}\"",
                self.number
            );
        }
    }
}

#[cfg(test)]
mod tests;
