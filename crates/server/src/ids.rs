//! Decision ids: unique to the process, cheap, and short enough to read out on the phone.
//!
//! A random prefix per process and a counter, in base 32 without letters that are mistaken for
//! digits. Two processes share a prefix once in 2^40.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Crockford's digits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PREFIX: usize = 8;
/// Prefix, dash, and 64 bits in digits of five.
const MOST: usize = PREFIX + 1 + 13;

/// Makes ids.
#[derive(Debug)]
pub(crate) struct Ids {
    prefix: [u8; PREFIX],
    next: AtomicU64,
}

/// One id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Id {
    text: [u8; MOST],
    length: u8,
}

impl Ids {
    /// With a random prefix.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut prefix = [0; PREFIX];
        getrandom::fill(&mut prefix)?;
        for byte in &mut prefix {
            *byte = DIGITS[usize::from(*byte) % DIGITS.len()];
        }
        Ok(Ids {
            prefix,
            next: AtomicU64::new(1),
        })
    }

    /// The next one.
    pub(crate) fn next(&self) -> Id {
        let mut rest = self.next.fetch_add(1, Relaxed);
        let mut text = [b'-'; MOST];
        text[..PREFIX].copy_from_slice(&self.prefix);
        let mut length = PREFIX + 1;
        while rest > 0 && length < MOST {
            text[length] = DIGITS[(rest % 32) as usize];
            rest /= 32;
            length += 1;
        }
        Id {
            text,
            length: length as u8,
        }
    }
}

impl Id {
    /// As it is shown.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).expect("digits are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_are_alike() {
        let ids = Ids::random().unwrap();
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            assert!(seen.insert(ids.next().as_str().to_owned()));
        }
        let longest = seen.iter().map(String::len).max();
        assert_eq!(longest, Some(PREFIX + 1 + 4));
    }

    #[test]
    fn the_last_of_all_still_fits() {
        let ids = Ids {
            prefix: [b'x'; PREFIX],
            next: AtomicU64::new(u64::MAX),
        };
        assert_eq!(ids.next().as_str(), "xxxxxxxx-zzzzzzzzzzzzf");
    }
}
