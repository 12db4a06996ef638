//! Names files of a rules folder that are not read, in the log: once each, when they are first seen.
//!
//! What reads like rules is the library's business; here is only when to look.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate::live::{FileFilter, ignored_rule_files};
use tracing::warn;

use crate::logs::SanitizedText;

/// How often to look for files of a rules folder that are not read.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a rules folder that are not read although they read like rules: named in the log when
/// they are first seen, because a limit in one of them does not exist.
#[derive(Debug)]
pub(super) struct IgnoredFiles {
    folder: Option<PathBuf>,
    reported: Mutex<Vec<PathBuf>>,
}

impl IgnoredFiles {
    pub(super) fn of(path: Option<&Path>, pick: FileFilter) -> Self {
        let path = path.map(Path::to_owned);
        IgnoredFiles {
            // Where every file counts, none is left out.
            folder: path.filter(|_| pick == FileFilter::Rules),
            reported: Mutex::default(),
        }
    }

    pub(super) fn warn(&self) {
        let Some(folder) = &self.folder else {
            return;
        };
        let found = ignored_rule_files(folder);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        for file in found.iter().filter(|file| !reported.contains(file)) {
            let file = SanitizedText(&file.to_string_lossy()).to_string();
            warn!(
                file,
                "not read: only *.yaml and *.yml files in the rules folder itself are; rename or move it"
            );
        }
        *reported = found;
    }
}

/// Names files that are added later, although nothing else has changed.
pub(super) async fn watch_for_ignored_files(ignored_files: Weak<IgnoredFiles>) {
    loop {
        tokio::time::sleep(SCAN_INTERVAL).await;
        let Some(ignored_files) = ignored_files.upgrade() else {
            return;
        };
        let scanned = tokio::task::spawn_blocking(move || ignored_files.warn()).await;
        if scanned.is_err() {
            return; // the service ends
        }
    }
}
