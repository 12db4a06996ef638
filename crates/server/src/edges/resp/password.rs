//! The password of the clients of this edge, if there is one.

use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Shorter passwords can be guessed.
const MIN_SAFE_LEN: usize = 16;

/// A password, stored as its digest.
pub(crate) struct RespPassword {
    digest: [u8; 32],
    is_short: bool,
}

impl RespPassword {
    /// Reads the password from a file, or returns the error text.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let file_error = |reason: &str| format!("--resp-password-file {}: {reason}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| file_error(&error.to_string()))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(file_error("the file is empty; write the password into it"));
        }
        Ok(RespPassword::of(password))
    }

    pub(super) fn of(password: &str) -> Self {
        RespPassword { digest: Sha256::digest(password).into(), is_short: password.len() < MIN_SAFE_LEN }
    }

    /// Whether it is short enough to be guessed.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether `given` is the password. Constant time: a near miss takes as long as a wild guess.
    pub(super) fn matches(&self, given: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(given).into();
        digest.ct_eq(&self.digest).into()
    }
}
