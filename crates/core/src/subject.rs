//! The identity of a counter: a keyed fingerprint of a rule's `by` values, and the name of the rule.
//!
//! A fingerprint is SipHash-1-3 with 128 bits over length-prefixed parts, so that ("ab", "c") and ("a", "bc") differ.
//! It is keyed, so that no outsider can craft two subjects that share a counter. No key string is stored anywhere.

use std::fmt;
use std::sync::Arc;

use crate::siphash::siphash128;

/// The deployment secret that keys fingerprints. Nodes that share counters share it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FingerprintKey([u8; 16]);

impl FingerprintKey {
    /// A key of 128 secret bits.
    pub const fn new(secret: [u8; 16]) -> Self {
        FingerprintKey(secret)
    }

    /// Begins the fingerprint of a subject in `namespace`.
    #[inline]
    pub fn hasher(&self, namespace: &str) -> SubjectHasher {
        let mut hasher = SubjectHasher { key: *self, inline: [0; INLINE_BYTES], len: 0, spilled: Vec::new() };
        hasher.part(namespace.as_bytes());
        hasher
    }

    /// The fingerprint of a subject that has a single part and a key of its own.
    #[inline]
    pub fn fingerprint(&self, part: &[u8]) -> Fingerprint {
        Fingerprint(siphash128(&self.0, part))
    }
}

/// Never prints the secret.
impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey(..)")
    }
}

/// Parts of up to this total length need no allocation.
const INLINE_BYTES: usize = 128;

/// Collects the parts of a subject. They are hashed in one call: part by part takes twice as long.
#[derive(Clone, Debug)]
pub struct SubjectHasher {
    key: FingerprintKey,
    inline: [u8; INLINE_BYTES],
    len: usize,
    /// All bytes, once they exceed `INLINE_BYTES`.
    spilled: Vec<u8>,
}

impl SubjectHasher {
    /// Adds one part, with its length.
    #[inline]
    pub fn part(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.add(&len.to_le_bytes());
        self.add(bytes);
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if !self.spilled.is_empty() {
            self.spilled.extend_from_slice(bytes);
        } else if let Some(room) = self.inline.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        } else {
            self.spilled = [&self.inline[..self.len], bytes].concat();
        }
    }

    /// The fingerprint of all parts so far.
    #[inline]
    pub fn finish(&self) -> Fingerprint {
        if self.spilled.is_empty() {
            self.key.fingerprint(&self.inline[..self.len])
        } else {
            self.key.fingerprint(&self.spilled)
        }
    }
}

/// A subject, as 128 bits that reveal nothing about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// From its bits.
    pub const fn new(bits: u128) -> Self {
        Fingerprint(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// Half of its bits, to distribute values by subject.
    pub const fn seed(self) -> u64 {
        self.0 as u64
    }
}

/// Prints as 32 hex digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The unique name of a rule, with the hash that separates its counters from those of other rules.
#[derive(Clone)]
pub struct RuleName {
    text: Arc<str>,
    hash: u128,
}

impl RuleName {
    /// The name `text`.
    pub fn new(text: &str) -> Self {
        RuleName { text: text.into(), hash: siphash128(&[0; 16], text.as_bytes()) }
    }

    /// As written in the rules file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The bits that identify the counter of `subject` under the `rate`-th rate of this rule. Two counters collide
    /// with probability 2^-128, because the fingerprint is keyed.
    #[inline]
    pub fn counter(&self, subject: Fingerprint, rate: u8) -> u128 {
        subject.0 ^ self.hash.rotate_left(u32::from(rate))
    }
}

impl PartialEq for RuleName {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RuleName {}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[&str]) -> Fingerprint {
        let mut hasher = FingerprintKey::new([7; 16]).hasher("test");
        for part in parts {
            hasher.part(part.as_bytes());
        }
        hasher.finish()
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
        assert_ne!(fingerprint(&["a"]), fingerprint(&["a", ""]));
    }

    #[test]
    fn long_parts_are_hashed_whole() {
        let long = "x".repeat(200);
        let mut longer = long.clone();
        longer.push('y');
        assert_ne!(fingerprint(&["a", &long]), fingerprint(&["a", &longer]));
        assert_ne!(fingerprint(&[&long, "a"]), fingerprint(&[&long, "b"]));
        assert_ne!(fingerprint(&[&long, "a"]), fingerprint(&["a", &long]));
    }

    #[test]
    fn rules_and_rates_of_one_subject_have_counters_of_their_own() {
        let subject = fingerprint(&["k1"]);
        let (a, b) = (RuleName::new("a"), RuleName::new("b"));
        assert_ne!(a.counter(subject, 0), b.counter(subject, 0));
        assert_ne!(a.counter(subject, 0), a.counter(subject, 1));
    }

    #[test]
    fn the_secret_is_never_printed() {
        assert_eq!(format!("{:?}", FingerprintKey::new([7; 16])), "FingerprintKey(..)");
    }
}
