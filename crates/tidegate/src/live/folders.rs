//! Listens for changes in the folders around a watched path.
//!
//! Folders, not files: a file that is renamed over or swapped by a link is another file, and a
//! listener on the old one hears nothing more. Listened to are the folder that holds the path (or
//! the nearest one above that exists), the path itself if it is a folder, the folders where its links
//! end, and those that hold a link on the way to it: whole deployments are swapped by such a one.
//! Links between the first and the last, and folders below, are left to the poll.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::survey::Which;

pub(super) struct Folders {
    watcher: Result<RecommendedWatcher, notify::Error>,
    /// Each folder listened to, and which one it was when listening began.
    heard: BTreeMap<PathBuf, Option<Which>>,
    deaf: Option<String>,
}

impl Folders {
    /// Calls `hint` whenever something may have changed.
    pub(super) fn new(hint: impl Fn() + Send + 'static) -> Self {
        let watcher = notify::recommended_watcher(move |event: Result<notify::Event, _>| {
            if event.map_or(true, |event| is_hint(event.kind)) {
                hint();
            }
        });
        let deaf = watcher.as_ref().err().map(ToString::to_string);
        Folders {
            watcher,
            heard: BTreeMap::new(),
            deaf,
        }
    }

    /// Why changes may not be heard, so that only polling finds them.
    pub(super) fn deaf(&self) -> Option<&str> {
        self.deaf.as_deref()
    }

    /// Listens where `path` and its links are now; says whether that is somewhere new. A look made
    /// before may have missed what happened there.
    pub(super) fn follow(&mut self, path: &Path) -> bool {
        let Ok(watcher) = &mut self.watcher else {
            return false;
        };
        let wanted = around(path);
        self.heard.retain(|folder, known| {
            let kept = wanted.get(folder) == Some(known);
            if !kept {
                // It may be gone already, and its listener with it: nothing to mend then.
                let _ = watcher.unwatch(folder);
            }
            kept
        });
        self.deaf = None;
        let mut moved = false;
        for (folder, which) in wanted {
            if self.heard.contains_key(&folder) {
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.heard.insert(folder, which);
                    moved = true;
                }
                Err(error) => self.deaf = Some(format!("{}: {error}", folder.display())),
            }
        }
        moved
    }
}

/// The folders where a change could show, and which they are.
fn around(path: &Path) -> BTreeMap<PathBuf, Option<Which>> {
    let holder = path.ancestors().skip(1).find(|above| above.is_dir());
    let mut folders: Vec<PathBuf> = holder
        .and_then(|above| above.canonicalize().ok())
        .into_iter()
        .collect();
    folders.extend(link_holders(path));
    if let Ok(end) = path.canonicalize() {
        if end.is_dir() {
            folders.extend(link_ends(&end));
            folders.push(end);
        } else {
            folders.extend(end.parent().map(Path::to_owned));
        }
    }
    let known = |folder: PathBuf| (Which::at(&folder), folder);
    folders
        .into_iter()
        .map(known)
        .map(|(which, folder)| (folder, which))
        .collect()
}

/// The folders that hold a link on the way to `path`.
fn link_holders(path: &Path) -> Vec<PathBuf> {
    let links = path.ancestors().filter(|part| part.is_symlink());
    links
        .filter_map(|link| link.parent()?.canonicalize().ok())
        .collect()
}

/// Where the links in a folder lead.
fn link_ends(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let ends = links
        .filter_map(|link| link.path().canonicalize().ok())
        .filter(|end| end.is_file());
    ends.filter_map(|end| end.parent().map(Path::to_owned))
        .collect()
}

/// Everything but plain access: our own reading would wake us for ever.
fn is_hint(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{CreateKind, ModifyKind};

    #[test]
    fn reading_is_no_hint_and_all_else_is() {
        assert!(!is_hint(EventKind::Access(AccessKind::Open(
            AccessMode::Any
        ))));
        assert!(!is_hint(EventKind::Access(AccessKind::Close(
            AccessMode::Read
        ))));
        assert!(is_hint(EventKind::Access(AccessKind::Close(
            AccessMode::Write
        ))));
        assert!(is_hint(EventKind::Modify(ModifyKind::Any)));
        assert!(is_hint(EventKind::Create(CreateKind::Any)));
        assert!(is_hint(EventKind::Other));
    }

    /// The reference service's way to change everything at once: `current` is turned to another folder.
    #[cfg(unix)]
    #[test]
    fn a_link_on_the_way_is_listened_to() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("v1/config")).unwrap();
        std::os::unix::fs::symlink("v1", top.join("current")).unwrap();
        let folders = around(&top.join("current/config"));
        assert!(folders.contains_key(&top), "{folders:?}");
        assert!(folders.contains_key(&top.join("v1/config")), "{folders:?}");
    }

    #[test]
    fn the_nearest_folder_that_exists_is_listened_to() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let folders = around(&top.join("not/yet/rules.yaml"));
        assert_eq!(folders.into_keys().collect::<Vec<_>>(), [top]);
    }
}
