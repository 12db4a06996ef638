//! Logs files of a rules folder that are not read, once each, when they are first seen.
//!
//! The library decides which files look like rules; this module decides when to check.

use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::live::{FileFilter, ignored_rule_files};
use tracing::warn;

use crate::logging::SanitizedText;

/// How often to scan for files of a rules folder that are not read.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The files of a rules folder that look like rules but are not read. Each is logged when it is first seen, because
/// the limits in it do not exist.
#[derive(Debug)]
pub(super) struct IgnoredFiles {
    folder: Option<PathBuf>,
    reported: Mutex<Vec<PathBuf>>,
}

impl IgnoredFiles {
    pub(super) fn of(path: Option<&Path>, pick: FileFilter) -> Self {
        let path = path.map(Path::to_owned);
        IgnoredFiles {
            // With other filters every file is read, so none is ignored.
            folder: path.filter(|_| pick == FileFilter::Rules),
            reported: Mutex::default(),
        }
    }

    pub(super) fn warn(&self) {
        let Some(folder) = &self.folder else {
            return;
        };
        let found = ignored_rule_files(folder);
        let mut reported = self.reported.lock();
        for file in found.iter().filter(|file| !reported.contains(file)) {
            let file = SanitizedText(&file.to_string_lossy()).to_string();
            warn!(file, "not read: only *.yaml and *.yml files in the rules folder itself are; rename or move it");
        }
        *reported = found;
    }
}

/// Reports files that are added later, even if nothing else has changed.
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
