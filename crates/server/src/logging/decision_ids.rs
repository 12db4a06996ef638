//! Decision ids: unique to the process, cheap, and short enough to read out on the phone.
//!
//! An id is a random prefix per process and a counter, in base 32 without letters that are mistaken for digits. Two
//! processes share a prefix with probability 2^-40.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Crockford's base 32.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PREFIX_LEN: usize = 8;
/// Prefix, dash, and 64 bits in digits of 5 bits.
const MAX_LEN: usize = PREFIX_LEN + 1 + 13;

/// Generates ids.
#[derive(Debug)]
pub(crate) struct DecisionIds {
    prefix: [u8; PREFIX_LEN],
    next: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DecisionId {
    text: [u8; MAX_LEN],
    length: u8,
}

impl DecisionIds {
    /// Starts at 1, with a random prefix.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut prefix = [0; PREFIX_LEN];
        getrandom::fill(&mut prefix)?;
        for byte in &mut prefix {
            *byte = DIGITS[usize::from(*byte) % DIGITS.len()];
        }
        Ok(DecisionIds { prefix, next: AtomicU64::new(1) })
    }

    pub(crate) fn next(&self) -> DecisionId {
        let mut rest = self.next.fetch_add(1, Relaxed);
        let mut text = [b'-'; MAX_LEN];
        text[..PREFIX_LEN].copy_from_slice(&self.prefix);
        let mut length = PREFIX_LEN + 1;
        while rest > 0 && length < MAX_LEN {
            text[length] = DIGITS[(rest % 32) as usize];
            rest /= 32;
            length += 1;
        }
        DecisionId { text, length: length as u8 }
    }
}

impl DecisionId {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).expect("digits are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique() {
        let ids = DecisionIds::random().unwrap();
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            assert!(seen.insert(ids.next().as_str().to_owned()));
        }
        let longest = seen.iter().map(String::len).max();
        assert_eq!(longest, Some(PREFIX_LEN + 1 + 4));
    }

    #[test]
    fn the_largest_counter_fits() {
        let ids = DecisionIds { prefix: [b'x'; PREFIX_LEN], next: AtomicU64::new(u64::MAX) };
        assert_eq!(ids.next().as_str(), "xxxxxxxx-zzzzzzzzzzzzf");
    }
}
