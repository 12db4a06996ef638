//! Hostile input for parsers, made from good input by a seed.
//!
//! An [`Attack`] gives a parser good examples with a few things wrong in each. Every input follows from
//! the seed and its own number, so a failure can be made again from what it prints. Kept true: no input
//! takes a parser longer than [`TOO_SLOW`]. What a parser must do with an input is said by its own test;
//! nothing here knows any.

mod dice;
pub mod inputs;
mod mutate;

use std::time::{Duration, Instant};

pub use dice::Dice;

/// The longest a parser may take for one input.
pub const TOO_SLOW: Duration = Duration::from_millis(10);

/// How often an input is tried that took too long: a busy machine is not a slow parser.
const TRIES: u32 = 5;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How many inputs the parser took for good.
    pub accepted: u32,
    /// The longest that any of them took, of an input tried again the shortest.
    pub slowest: Duration,
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

    /// Gives every input to `accepts`, which is the parser and is timed; those it accepts to `holds`,
    /// which says what must be true of them, in its own time.
    ///
    /// # Panics
    /// If the parser does, is too slow, or accepts next to nothing: then the inputs are too wild to
    /// test much. What is printed begins with the seed and the input.
    pub fn run(
        &self,
        mut accepts: impl FnMut(&[u8]) -> bool,
        mut holds: impl FnMut(&[u8]),
    ) -> Outcome {
        let mut outcome = Outcome {
            accepted: 0,
            slowest: Duration::ZERO,
        };
        for number in 0..self.inputs {
            let input = self.input(number);
            let told = Told {
                attack: self,
                number,
                input: &input,
            };
            let (accepted, took) = timed(&mut accepts, &input);
            outcome.slowest = outcome.slowest.max(took);
            assert!(took <= TOO_SLOW, "took {took:?} every time");
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

/// Whether it is accepted, and the shortest time that took.
fn timed(accepts: &mut impl FnMut(&[u8]) -> bool, input: &[u8]) -> (bool, Duration) {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begun = Instant::now();
        let accepted = accepts(input);
        shortest = shortest.min(begun.elapsed());
        if shortest <= TOO_SLOW {
            return (accepted, shortest);
        }
    }
    (false, shortest)
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
