//! The password of the clients of this edge, if there is one.

use std::path::Path;

use crate::edges::common::secret_digest::{MIN_SECRET_LEN, SecretDigest};

/// A password, stored as its digest.
pub(crate) struct RespPassword {
    digest: SecretDigest,
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
        RespPassword { digest: SecretDigest::of(password), is_short: password.len() < MIN_SECRET_LEN }
    }

    /// Whether it is short enough to be guessed.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether `given` is the password.
    pub(super) fn matches(&self, given: &[u8]) -> bool {
        self.digest.matches(given)
    }
}
