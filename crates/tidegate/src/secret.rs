//! The deployment secret and the keys derived from it: the fingerprint key and the seal of receipts.
//!
//! Nodes that share counters or accept each other's receipts share the secret. It is never printed.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate_core::subject::FingerprintKey;

use crate::hex;

/// Bytes of the seal in a receipt.
pub(crate) const SEAL_LEN: usize = 16;

/// Secret bytes from which every key is derived.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret of this process alone.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// A secret from the contents of a file of any length.
    ///
    /// # Errors
    /// When the contents without surrounding white space have fewer than 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WeakSecretError> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < 16 {
            return Err(WeakSecretError { found: bytes.len() });
        }
        Ok(Secret(Sha256::digest(bytes).into()))
    }
}

/// Not public: callers outside of this crate are the service and the tests.
#[cfg_attr(not(feature = "internals"), doc(hidden))]
impl Secret {
    /// The key of every fingerprint.
    pub fn fingerprint_key(&self) -> FingerprintKey {
        let derived = self.derive(b"fingerprint");
        let (half, _) = derived.split_first_chunk::<16>().expect("a digest of 32 bytes has 16");
        FingerprintKey::new(*half)
    }

    /// The whole secret as text, for the store that the nodes share or for a file of this node.
    #[cfg(feature = "redis")]
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }

    /// The secret that [`Secret::to_hex`] wrote.
    #[cfg(feature = "redis")]
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_into(text.as_bytes(), &mut bytes)?;
        Some(Secret(bytes))
    }

    /// A check value: text by which two nodes find out whether they have the same secret, and nothing more.
    #[cfg(feature = "redis")]
    pub(crate) fn check_value(&self) -> String {
        hex::encode(&self.derive(b"check")[..16])
    }

    /// A number by which a journal finds out whether this secret made the names of its counters.
    #[cfg(feature = "disk")]
    pub(crate) fn journal_mark(&self) -> u64 {
        let derived = self.derive(b"journal");
        let (mark, _) = derived.split_first_chunk::<8>().expect("a digest of 32 bytes has 8");
        u64::from_be_bytes(*mark)
    }

    pub(crate) fn seal(&self, payload: &[u8]) -> [u8; SEAL_LEN] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.derive(b"receipt")).expect("an HMAC key may have any length");
        mac.update(payload);
        let tag = mac.finalize().into_bytes();
        let (half, _) = tag.split_first_chunk::<SEAL_LEN>().expect("a tag of 32 bytes has 16");
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

/// Redacted.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The secret is too short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the secret has {found} bytes; write 16 random bytes or more")]
pub struct WeakSecretError {
    found: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_valid_for_its_payload_and_secret_only() {
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let other = Secret::from_bytes(b"0123456789abcdeX").unwrap();
        let seal = secret.seal(b"payload");
        assert!(secret.verifies_seal(b"payload", &seal));
        assert!(!secret.verifies_seal(b"payloaD", &seal));
        assert!(!other.verifies_seal(b"payload", &seal));
        assert!(!secret.verifies_seal(b"payload", &seal[..15]));
    }

    #[test]
    fn a_short_secret_is_rejected_and_no_secret_is_printed() {
        assert_eq!(Secret::from_bytes(b" short\n").unwrap_err(), WeakSecretError { found: 5 });
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
