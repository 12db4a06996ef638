//! Generates API keys.

use std::fmt;

/// The random part of a key: 160 bits, well above the 128 that make guessing hopeless, and a whole number of base32
/// digits.
const RANDOM_BYTES: usize = 20;

/// Lower-case letters and digits that are not mistaken for one another (RFC 4648 base32).
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A raw API key. Debug output shows only its prefix: use [`expose`](Self::expose).
pub struct RawApiKey(String);

impl RawApiKey {
    /// A new random key like `tg_mfrggzdfmztwq2lkmfrggzdfmztwq2lk`. Fails if the operating system has no
    /// randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)?;
        Ok(RawApiKey(format!("tg_{}", base32(&random))))
    }

    /// The key itself, to show to its owner once.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RawApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawApiKey(tg_…)")
    }
}

fn base32(bytes: &[u8; RANDOM_BYTES]) -> String {
    let (groups, _) = bytes.as_chunks::<5>();
    groups.iter().flat_map(|group| (0..8).map(|at| digit(group, at))).collect()
}

/// The digit of bits 5·at to 5·at+4 of a group of 40 bits.
fn digit(group: &[u8; 5], at: u32) -> char {
    let bits = group.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    let index = bits >> (35 - 5 * at) & 31;
    char::from(DIGITS[index as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_rfc_4648() {
        assert_eq!(base32(b"abcdefghijabcdefghij"), "mfrggzdfmztwq2lkmfrggzdfmztwq2lk");
    }

    #[test]
    fn keys_are_long_distinct_and_hidden_from_debug_output() {
        let [a, b] = [RawApiKey::new().unwrap(), RawApiKey::new().unwrap()];
        assert_eq!(a.expose().len(), 35);
        assert!(a.expose().starts_with("tg_"));
        assert_ne!(a.expose(), b.expose());
        assert_eq!(format!("{a:?}"), "RawApiKey(tg_…)");
    }
}
