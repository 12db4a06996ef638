//! The data directory: files that a node needs after a restart. Only its owner can read them.
//!
//! | file | what |
//! |---|---|
//! | `counts.redb` | the journal of durable counts, with counters in memory |
//! | `roster`, `roster.lock` | the list of nodes, with a store that they share |
//! | `pending` | what this node has admitted without that store: pending charges, charges that count toward its shares, permits |
//! | `store-secret` | the last known secret of that store, which names its counters |
//! | `secret` | the secret that names counters in memory, unless `--secret-file` is set |
//!
//! Without its secret no count is found again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tidegate::Secret;
use tidegate::clock::{Clock, SystemClock};
use tidegate::stores::disk;
use tracing::warn;

/// The path of the journal.
pub(crate) fn journal_path(folder: &Path) -> PathBuf {
    folder.join("counts.redb")
}

/// Creates the folder if it is missing. No other code does.
pub(crate) fn create_dir(folder: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| error_message(folder, &error))
}

/// The secret in the file of `--secret-file`, or why the file does not contain one.
pub(crate) fn read_secret_file(file: &Path) -> Result<Secret, String> {
    let error_message = |reason: String| format!("--secret-file {}: {reason}", file.display());
    let bytes = fs::read(file).map_err(|error| error_message(error.to_string()))?;
    Secret::from_bytes(&bytes).map_err(|error| error_message(error.to_string()))
}

/// The secret of this node: generated at its first start, the same at every later one. If the secret is missing but
/// counts exist, it is an error: a new secret would find none of them.
pub(crate) fn load_or_create_secret(folder: &Path) -> Result<Secret, String> {
    let file = folder.join("secret");
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (journal, now) = (journal_path(folder), SystemClock::new().now());
            if disk::has_counts(&journal, now).map_err(|error| error.to_string())? {
                return Err(format!(
                    "{}: is missing, and {} beside it holds counts that only this secret can name; restore \
                     the secret from a copy, or move the journal away to begin with no counts",
                    file.display(),
                    journal.display()
                ));
            }
            create_secret(&file).map_err(|error| error_message(&file, &error))?
        }
        Err(error) => return Err(error_message(&file, &error)),
    };
    Secret::from_bytes(&bytes).map_err(|error| format!("{}: {error}", file.display()))
}

/// The last known secret of the shared store. An unreadable file counts as none, with a warning: the store has the
/// secret, but until it replies the charges in `pending` cannot be found.
pub(crate) fn load_store_secret(folder: &Path) -> Option<Secret> {
    let file = store_secret_path(folder);
    let error = match fs::read_to_string(&file) {
        Ok(text) => match Secret::from_hex(text.trim()) {
            Some(secret) => return Some(secret),
            None => "not a secret in hexadecimal digits".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    warn!(
        path = %file.display(),
        error,
        "the secret of the store cannot be read; until the store replies, what this node had admitted before does not count"
    );
    None
}

/// Saves the secret of the shared store, so that pending charges are found again after a restart without the store.
pub(crate) fn save_store_secret(folder: &Path, secret: &Secret) -> Result<(), String> {
    let file = store_secret_path(folder);
    replace(&file, &secret.to_hex(), FileSync::Full).map_err(|error| error_message(&file, &error))
}

fn store_secret_path(folder: &Path) -> PathBuf {
    folder.join("store-secret")
}

/// Half a secret would name other counters, so the file is replaced as a whole.
fn create_secret(file: &Path) -> io::Result<Vec<u8>> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    replace(file, &text, FileSync::Full)?;
    Ok(text.into_bytes())
}

/// Whether a written file has to survive a crash of the machine, or only the end of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileSync {
    Skip,
    Full,
}

/// Replaces a file of the folder as a whole. A concurrent reader sees the old content or the new one, each complete.
pub(super) fn replace(path: &Path, text: &str, sync: FileSync) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(text.as_bytes())?;
    if sync == FileSync::Full {
        file.sync_all()?;
    }
    fs::rename(&next, path)?;
    match path.parent() {
        Some(folder) if sync == FileSync::Full => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// The content of a file, if it exists. `invalid` is the error for content that is not UTF-8 or that `parse` rejects.
pub(super) fn read_parsed<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Option<T>,
    invalid: &'static str,
) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let parsed = str::from_utf8(&bytes).ok().and_then(parse);
    parsed.map(Some).ok_or_else(|| io::Error::other(invalid))
}

fn error_message(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}; see whether the folder of --data-dir can be written", path.display())
}
