//! Reads the secret of a node from a file.

use std::path::Path;

use tidegate::Secret;

/// The secret, or why the file does not contain one, with the name of the file.
pub(crate) fn read(file: &Path) -> Result<Secret, String> {
    let error_message = |reason: String| format!("{}: {reason}", file.display());
    let bytes = std::fs::read(file).map_err(|error| error_message(error.to_string()))?;
    Secret::from_bytes(&bytes).map_err(|error| error_message(error.to_string()))
}
