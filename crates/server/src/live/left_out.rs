//! Names files of a rules folder that are not read, in the log: once each, when they are first seen.
//!
//! What reads like rules is the library's business; here is only when to look.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate::live::{Pick, left_out};
use tracing::warn;

use crate::logs::Shown;

/// How often to look for files of a rules folder that are not read.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(10);

/// The files of a rules folder that are not read although they read like rules: named in the log when
/// they are first seen, because a limit in one of them does not exist.
#[derive(Debug)]
pub(super) struct LeftOut {
    folder: Option<PathBuf>,
    known: Mutex<Vec<PathBuf>>,
}

impl LeftOut {
    pub(super) fn of(path: Option<&Path>, pick: Pick) -> Self {
        let path = path.map(Path::to_owned);
        LeftOut {
            // Where every file counts, none is left out.
            folder: path.filter(|_| pick == Pick::Rules),
            known: Mutex::default(),
        }
    }

    pub(super) fn warn(&self) {
        let Some(folder) = &self.folder else {
            return;
        };
        let found = left_out(folder);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for file in found.iter().filter(|file| !known.contains(file)) {
            let file = Shown(&file.to_string_lossy()).to_string();
            warn!(
                file,
                "not read: only *.yaml and *.yml files in the rules folder itself are; rename or move it"
            );
        }
        *known = found;
    }
}

/// Names files that are added later, although nothing else has changed.
pub(super) async fn keep_looking(left_out: Weak<LeftOut>) {
    loop {
        tokio::time::sleep(LEFT_OUT_EVERY).await;
        let Some(left_out) = left_out.upgrade() else {
            return;
        };
        let looked = tokio::task::spawn_blocking(move || left_out.warn()).await;
        if looked.is_err() {
            return; // the service ends
        }
    }
}
