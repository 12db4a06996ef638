//! A password or token that clients send, stored as its digest.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Shorter secrets can be guessed.
pub(crate) const MIN_SECRET_LEN: usize = 16;

#[derive(Clone)]
pub(crate) struct SecretDigest([u8; 32]);

impl SecretDigest {
    pub(crate) fn of(secret: &str) -> Self {
        SecretDigest(Sha256::digest(secret).into())
    }

    /// Whether `given` is the secret. Constant time: a near miss takes as long as a wild guess.
    pub(crate) fn matches(&self, given: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(given).into();
        digest.ct_eq(&self.0).into()
    }
}
