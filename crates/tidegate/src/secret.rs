//! The deployment secret, and what is made from it: the fingerprint key and the receipt seal.
//!
//! Nodes that share counters or honour each other's receipts share the secret. It is never printed.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate_core::subject::FingerprintKey;

/// How many bytes of a seal travel with a receipt.
pub(crate) const SEAL_LEN: usize = 16;

/// Secret bytes from which every key is derived.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret of this process alone.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// A secret from the contents of a file, whatever its length.
    ///
    /// # Errors
    /// When it has fewer than 16 bytes without surrounding white space.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WeakSecretError> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < 16 {
            return Err(WeakSecretError { found: bytes.len() });
        }
        Ok(Secret(Sha256::digest(bytes).into()))
    }

    /// The key of every fingerprint.
    pub fn fingerprint_key(&self) -> FingerprintKey {
        let derived = self.derive(b"fingerprint");
        let (half, _) = derived
            .split_first_chunk::<16>()
            .expect("a digest of 32 bytes has 16");
        FingerprintKey::new(*half)
    }

    /// All of it as text, for a store that the nodes share or for a file of this node.
    #[cfg(feature = "redis")]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The secret that [`Secret::to_hex`] wrote.
    #[cfg(feature = "redis")]
    pub fn from_hex(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Secret(bytes))
    }

    /// Text by which two nodes tell that they have the same secret, and nothing more.
    #[cfg(feature = "redis")]
    pub(crate) fn check_value(&self) -> String {
        let check = self.derive(b"check");
        check[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// A number by which a journal tells whether its counts are named by this secret.
    #[cfg(feature = "disk")]
    pub(crate) fn journal_mark(&self) -> u64 {
        let derived = self.derive(b"journal");
        let (mark, _) = derived
            .split_first_chunk::<8>()
            .expect("a digest of 32 bytes has 8");
        u64::from_be_bytes(*mark)
    }

    /// Seals `payload`.
    pub(crate) fn seal(&self, payload: &[u8]) -> [u8; SEAL_LEN] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.derive(b"receipt"))
            .expect("an HMAC key may have any length");
        mac.update(payload);
        let tag = mac.finalize().into_bytes();
        let (half, _) = tag
            .split_first_chunk::<SEAL_LEN>()
            .expect("a tag of 32 bytes has 16");
        *half
    }

    /// Whether `seal` was made for `payload` with this secret, in constant time.
    pub(crate) fn verifies_seal(&self, payload: &[u8], seal: &[u8]) -> bool {
        self.seal(payload).ct_eq(seal).into()
    }

    fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(purpose);
        hasher.finalize().into()
    }
}

/// Never prints the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret too short to be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the secret has {found} bytes; write 16 random bytes or more")]
pub struct WeakSecretError {
    found: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_for_its_payload_and_secret_only() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let other = Secret::from_bytes(b"0123456789abcdeX").unwrap();
        let seal = secret.seal(b"payload");
        assert!(secret.verifies_seal(b"payload", &seal));
        assert!(!secret.verifies_seal(b"payloaD", &seal));
        assert!(!other.verifies_seal(b"payload", &seal));
        assert!(!secret.verifies_seal(b"payload", &seal[..15]));
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_printed() {
        assert_eq!(
            Secret::from_bytes(b" short\n").unwrap_err(),
            WeakSecretError { found: 5 }
        );
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
