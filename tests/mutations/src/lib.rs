//! Hostile input for parsers, made from good input by a seed.
//!
//! An [`Attack`] gives a parser good examples with a few things wrong in each. Every input follows from
//! the seed and its own number, so a failure can be made again from what it prints. Kept true: no input is
//! more work for a parser than [`MAX_YARDSTICKS`]. What a parser must do with an input is said by its own
//! test; nothing here knows any.

mod dice;
pub mod inputs;
mod mutate;
mod work;

use std::time::{Duration, Instant};

pub use dice::Dice;
pub use work::yardsticks;

/// The most work that one input may be for a parser. The dearest of all is 6 for the rules parser.
pub const MAX_YARDSTICKS: f64 = 20.0;

/// An input that is read within this is little work, however busy the machine is. The work of any other is
/// counted.
const SURELY_LITTLE: Duration = Duration::from_millis(5);

/// How numbers are written in a language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// In digits.
    Digits,
    /// In bytes, and lengths stand before what they measure, as in protocol buffers.
    Bytes,
}

/// Inputs for one parser.
#[derive(Clone, Copy, Debug)]
pub struct Attack<'c> {
    /// What is attacked, for the report.
    pub parser: &'c str,
    /// The same seed gives the same inputs.
    pub seed: u64,
    /// How many.
    pub inputs: u32,
    /// Good input, some of everything that the parser knows.
    pub good: &'c [&'c [u8]],
    /// What the language is made of.
    pub tokens: &'c [&'c [u8]],
    /// What may stand within itself: how it opens, and how it closes.
    pub nests: &'c [(&'c [u8], &'c [u8])],
    /// How numbers are written.
    pub numbers: Numbers,
    /// The longest input.
    pub longest: usize,
}

/// What came of an attack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// How many inputs the parser took for good.
    pub accepted: u32,
    /// How many inputs were not surely little work.
    pub counted: u32,
    /// The most work that one of those was, in yardsticks.
    pub most_work: f64,
}

impl Attack<'_> {
    /// Input number `number`.
    pub fn input(&self, number: u32) -> Vec<u8> {
        let mut dice = Dice::of(self.seed, number);
        let mut input = dice.one_of(self.good).to_vec();
        for _ in 0..=dice.below(4) {
            mutate::mutate(self, &mut dice, &mut input);
            input.truncate(self.longest);
        }
        input
    }

    /// Gives every input to `accepts`, which is the parser and whose work is counted; those it accepts to
    /// `holds`, which says what must be true of them, at any cost.
    ///
    /// # Panics
    /// If the parser does, if an input is too much work for it, or if it accepts next to nothing: then the
    /// inputs are too wild to test much. What is printed begins with the seed and the input.
    pub fn run(
        &self,
        mut accepts: impl FnMut(&[u8]) -> bool,
        mut holds: impl FnMut(&[u8]),
    ) -> Outcome {
        let mut outcome = Outcome {
            accepted: 0,
            counted: 0,
            most_work: 0.0,
        };
        for number in 0..self.inputs {
            let input = self.input(number);
            let told = Told {
                attack: self,
                number,
                input: &input,
            };
            let begun = Instant::now();
            let accepted = accepts(&input);
            if begun.elapsed() > SURELY_LITTLE {
                let work = yardsticks(|| _ = accepts(&input));
                outcome.counted += 1;
                outcome.most_work = outcome.most_work.max(work);
                assert!(work <= MAX_YARDSTICKS, "{work:.1} yardsticks of work");
            }
            if accepted {
                outcome.accepted += 1;
                holds(&input);
            }
            drop(told);
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
struct Told<'a> {
    attack: &'a Attack<'a>,
    number: u32,
    input: &'a [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Attack { parser, seed, .. } = self.attack;
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
