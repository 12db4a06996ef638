//! The harness by itself: the part of every figure that is not the limiter.

use std::hint::black_box;

use crate::{Allowance, Key, LimiterSubject};

/// Reads the text of the key and admits. Its time is subtracted from net figures.
///
/// It reads both ends of the text, so that the cache misses of fetching the key belong to it and not to a
/// limiter; it does not hash, because hashing is a choice of each limiter.
#[derive(Debug)]
pub struct Harness;

impl LimiterSubject for Harness {
    const NAME: &'static str = "harness alone";
    type Scratch = ();

    fn new(_: Allowance, _: usize) -> Self {
        Harness
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        let text = key.as_str().as_bytes();
        black_box(text.first().copied()) != black_box(text.last().copied())
    }
}
