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

/// The path of the journal.
pub(crate) fn journal_path(folder: &Path) -> PathBuf {
    folder.join("counts.redb")
}

/// Creates the folder if it is missing. No other code does.
pub(crate) fn create_dir(folder: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| error_message(folder, &error))
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
            create_secret(folder, &file).map_err(|error| error_message(&file, &error))?
        }
        Err(error) => return Err(error_message(&file, &error)),
    };
    Secret::from_bytes(&bytes).map_err(|error| format!("{}: {error}", file.display()))
}

/// The last known secret of the shared store. An unreadable file counts as none: the store has the secret.
pub(crate) fn load_store_secret(folder: &Path) -> Option<Secret> {
    let text = fs::read_to_string(store_secret_path(folder)).ok()?;
    Secret::from_hex(text.trim())
}

/// Saves the secret of the shared store, so that pending charges are found again after a restart without the store.
pub(crate) fn save_store_secret(folder: &Path, secret: &Secret) -> Result<(), String> {
    let file = store_secret_path(folder);
    write_secret(folder, &file, &secret.to_hex()).map_err(|error| error_message(&file, &error))
}

fn store_secret_path(folder: &Path) -> PathBuf {
    folder.join("store-secret")
}

/// Writes the file completely or not at all: half a secret would name other counters.
fn create_secret(folder: &Path, file: &Path) -> io::Result<Vec<u8>> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    write_secret(folder, file, &text)?;
    Ok(text.into_bytes())
}

fn write_secret(folder: &Path, file: &Path, text: &str) -> io::Result<()> {
    let temporary = file.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut temporary_file = options.open(&temporary)?;
    temporary_file.write_all(text.as_bytes())?;
    temporary_file.sync_all()?;
    fs::rename(&temporary, file)?;
    File::open(folder)?.sync_all()
}

fn error_message(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}; see whether the folder of --data-dir can be written", path.display())
}
