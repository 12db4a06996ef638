//! The SHA-256 of a key, which replaces the key in files, tables and logs.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::hex;

/// SHA-256 of an API key, of its bytes exactly as sent. Comparison takes constant time. Printing shows the first
/// eight hex digits, enough to find a line in a file.
#[derive(Clone, Copy, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a key: the same as `printf %s KEY | sha256sum`.
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        Digest(Sha256::digest(key).into())
    }

    /// A digest from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// Parses 64 hex digits of either case.
    pub(super) fn from_hex(digits: &[u8; 64]) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_into(digits, &mut bytes)?;
        Some(Digest(bytes))
    }

    /// The bytes, to hash or compare; not for printing.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// All 64 hex digits, for a line of a keys file.
    pub(super) fn to_hex(self) -> String {
        hex::encode(&self.0)
    }
}

impl ConstantTimeEq for Digest {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "sha256:{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    #[test]
    fn the_digest_is_the_sha256_of_the_key_text() {
        assert_eq!(Digest::of("hello").to_hex(), HELLO);
    }

    #[test]
    fn hex_of_either_case_is_parsed() {
        let read = |hex: &str| Digest::from_hex(hex.as_bytes().first_chunk().unwrap());
        assert_eq!(read(HELLO), Some(Digest::of("hello")));
        assert_eq!(read(&HELLO.to_uppercase()), Some(Digest::of("hello")));
        assert_eq!(read(&HELLO.replace('f', "g")), None);
    }

    #[test]
    fn printing_shows_only_the_beginning() {
        let digest = Digest::of("hello");
        assert_eq!(format!("{digest} {digest:?}"), "sha256:2cf24dba… sha256:2cf24dba…");
    }
}
