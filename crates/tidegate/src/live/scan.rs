//! Which files there are to read, without reading them: paths, sizes and modification times.
//!
//! Two equal scans around a read mean that nothing changed in between. Symbolic links are followed: the file at the
//! end counts (Kubernetes puts two links before it). Files above the size limits and files that block when opened
//! are rejected here.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::file_state::FileError;

/// File timestamps may be this coarse, so a file this fresh can change again and look the same.
const MAX_FILE_TIME_GRANULARITY: Duration = Duration::from_secs(2);

/// Maximum sizes that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeLimits {
    /// Of one file.
    pub file_bytes: u64,
    /// Of all files of a folder.
    pub total_bytes: u64,
}

impl SizeLimits {
    /// For rules: 16 MiB a file, 64 MiB a folder.
    pub const RULES: SizeLimits = SizeLimits { file_bytes: 16 << 20, total_bytes: 64 << 20 };
    /// For a keys file: 256 MiB.
    pub const KEYS: SizeLimits = SizeLimits { file_bytes: 256 << 20, total_bytes: 256 << 20 };
}

/// The allowed kinds of a watched path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathKind {
    File,
    FileOrFolder(FileFilter),
}

/// Which files of a folder are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileFilter {
    /// `*.yaml` and `*.yml` in the folder itself, without the extra files of editors and Kubernetes.
    #[default]
    Rules,
    /// Every file, also in subfolders, as the Envoy reference service reads them. Names that begin with two dots
    /// are never read: Kubernetes stores its own copies under those.
    Every {
        /// Whether names that begin with one dot are read.
        dot_files: bool,
    },
}

/// Maximum depth of subfolders.
const MAX_DEPTH: usize = 8;

/// The files to read, sorted by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileScan {
    pub(super) files: Vec<ScannedFile>,
}

/// One scanned file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ScannedFile {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    modified: Option<SystemTime>,
    inode: Inode,
}

impl FileScan {
    pub(super) fn of(path: &Path, kind: PathKind, limits: SizeLimits) -> Result<Self, FileError> {
        let metadata = stat(path)?;
        let files = if !metadata.is_dir() {
            vec![ScannedFile::of(path.to_owned(), &metadata)?]
        } else if let PathKind::FileOrFolder(filter) = kind {
            scan_folder(path, filter)?
        } else {
            return Err(FileError::NotAFile { path: path.to_owned() });
        };
        check_size(limits, &files)?;
        Ok(FileScan { files })
    }

    /// Whether a later equal scan proves equal contents: not if a file was modified so shortly before `seen_at`
    /// that a second write could have the same timestamp.
    pub(super) fn proves_unchanged(&self, seen_at: SystemTime) -> bool {
        let is_old = |age: Option<Duration>| age.is_some_and(|age| age > MAX_FILE_TIME_GRANULARITY);
        self.ages(seen_at).all(is_old)
    }

    /// Whether a file was modified that shortly before `seen_at`. A timestamp in the future does not count.
    pub(super) fn is_fresh(&self, seen_at: SystemTime) -> bool {
        let is_young = |age: Option<Duration>| age.is_some_and(|age| age <= MAX_FILE_TIME_GRANULARITY);
        self.ages(seen_at).any(is_young)
    }

    /// The age of each timestamp at `seen_at`; `None` for those in the future and those the system does not provide.
    fn ages(&self, seen_at: SystemTime) -> impl Iterator<Item = Option<Duration>> {
        let times = self.files.iter();
        let times = times.flat_map(|file| [file.modified, file.inode.changed()]);
        times.map(move |at| seen_at.duration_since(at?).ok())
    }
}

impl ScannedFile {
    fn of(path: PathBuf, metadata: &Metadata) -> Result<Self, FileError> {
        if !metadata.is_file() {
            return Err(FileError::NotAFile { path });
        }
        let (len, modified, inode) = (metadata.len(), metadata.modified().ok(), Inode::of(metadata));
        Ok(ScannedFile { path, len, modified, inode })
    }
}

/// The identity of a file, whatever its name, and its last change of any kind. Zero where the system does not
/// provide them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Inode {
    device: u64,
    number: u64,
    changed_secs: i64,
    changed_nanos: i64,
}

impl Inode {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Inode {
            device: metadata.dev(),
            number: metadata.ino(),
            changed_secs: metadata.ctime(),
            changed_nanos: metadata.ctime_nsec(),
        }
    }

    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Self {
        Inode { device: 0, number: 0, changed_secs: 0, changed_nanos: 0 }
    }

    fn changed(self) -> Option<SystemTime> {
        let [secs, nanos] = [self.changed_secs, self.changed_nanos].map(|n| u64::try_from(n).ok());
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs?) + Duration::from_nanos(nanos?))
    }
}

fn stat(path: &Path) -> Result<Metadata, FileError> {
    fs::metadata(path).map_err(|error| file_error(path, &error))
}

/// The `FileError` for an error of the operating system.
pub(super) fn file_error(path: &Path, error: &io::Error) -> FileError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => FileError::NotFound { path },
        _ => FileError::Unreadable { path, reason: error.to_string() },
    }
}

/// The files of a folder that match `filter`.
pub(super) fn files_in(path: &Path, filter: FileFilter) -> Result<Vec<PathBuf>, FileError> {
    let mut paths = Vec::new();
    list_files(path, filter, MAX_DEPTH, &mut paths)?;
    Ok(paths)
}

fn scan_folder(path: &Path, filter: FileFilter) -> Result<Vec<ScannedFile>, FileError> {
    let mut paths = files_in(path, filter)?;
    if paths.is_empty() {
        return Err(FileError::EmptyFolder { path: path.to_owned() });
    }
    paths.sort_unstable();
    paths.into_iter().map(|path| stat(&path).and_then(|about| ScannedFile::of(path, &about))).collect()
}

/// Lists the matching files. Only real subfolders are entered: a link to one could form a cycle.
fn list_files(path: &Path, filter: FileFilter, depth: usize, into: &mut Vec<PathBuf>) -> Result<(), FileError> {
    let to_error = |error: io::Error| file_error(path, &error);
    for entry in fs::read_dir(path).map_err(to_error)? {
        let entry = entry.map_err(to_error)?;
        if !entry.file_name().to_str().is_some_and(|name| filter.matches(name)) {
            continue;
        }
        let below = filter != FileFilter::Rules && entry.file_type().map_err(to_error)?.is_dir();
        match (below, depth) {
            (false, _) => into.push(entry.path()),
            (true, 0) => return Err(FileError::TooDeep { path: entry.path() }),
            (true, _) => list_files(&entry.path(), filter, depth - 1, into)?,
        }
    }
    Ok(())
}

impl FileFilter {
    fn matches(self, name: &str) -> bool {
        match self {
            FileFilter::Rules => is_rules_name(name),
            FileFilter::Every { dot_files: true } => !name.starts_with(".."),
            FileFilter::Every { dot_files: false } => !name.starts_with('.'),
        }
    }
}

/// `*.yaml` and `*.yml`, but not the extra files of editors and Kubernetes: `.x.yaml.swp`, `.#x.yaml`, `#x.yaml#`,
/// `x.yaml~`, `..data`.
fn is_rules_name(name: &str) -> bool {
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
    is_yaml && !name.starts_with(['.', '#'])
}

fn check_size(limits: SizeLimits, files: &[ScannedFile]) -> Result<(), FileError> {
    let mut total = 0u64;
    for file in files {
        total = total.saturating_add(file.len);
        for (bytes, max) in [(file.len, limits.file_bytes), (total, limits.total_bytes)] {
            if bytes > max {
                return Err(FileError::TooLarge { path: file.path.clone(), bytes, max_bytes: max });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(path: &Path) -> Result<FileScan, FileError> {
        FileScan::of(path, PathKind::FileOrFolder(FileFilter::Rules), SizeLimits::RULES)
    }

    /// The names, relative to the folder.
    fn picked(path: &Path, filter: FileFilter) -> Vec<String> {
        let found = FileScan::of(path, PathKind::FileOrFolder(filter), SizeLimits::RULES).unwrap();
        let name = |file: &ScannedFile| file.path.strip_prefix(path).unwrap().display().to_string();
        found.files.iter().map(name).collect()
    }

    #[test]
    fn a_folder_yields_its_rules_files_by_name_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["b.yaml", "a.yml", "c.yaml~", ".c.yaml", ".c.yaml.swp", "#c.yaml#", ".#c.yaml", "c.txt", "yaml"];
        names.iter().for_each(|name| fs::write(dir.path().join(name), "x").unwrap());
        let found = scan(dir.path()).unwrap();
        let names: Vec<_> = found.files.iter().map(|file| file.path.file_name().unwrap()).collect();
        assert_eq!(names, ["a.yml", "b.yaml"]);
    }

    /// A mount as Kubernetes makes it. With its copies every domain would count twice.
    #[test]
    fn every_file_is_read_except_the_copies_of_kubernetes() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("..2026_11_15");
        fs::create_dir_all(dir.path().join("below/.hidden")).unwrap();
        fs::create_dir(&copy).unwrap();
        fs::write(copy.join("a.yaml"), "x").unwrap();
        for name in [".b", "c", "below/d.txt", "below/.hidden/e"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("..2026_11_15", dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        let every = picked(dir.path(), FileFilter::Every { dot_files: true });
        assert_eq!(every, [".b", "a.yaml", "below/.hidden/e", "below/d.txt", "c"]);
        let plain = picked(dir.path(), FileFilter::Every { dot_files: false });
        assert_eq!(plain, ["a.yaml", "below/d.txt", "c"]);
        assert_eq!(picked(dir.path(), FileFilter::Rules), ["a.yaml"]);
    }

    #[test]
    fn nested_folders_have_a_maximum_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/".repeat(MAX_DEPTH + 1))).unwrap();
        let every = PathKind::FileOrFolder(FileFilter::Every { dot_files: true });
        let found = FileScan::of(dir.path(), every, SizeLimits::RULES);
        assert!(matches!(found, Err(FileError::TooDeep { .. })), "{found:?}");
    }

    #[test]
    fn an_unreadable_file_is_an_error_of_the_whole_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.yaml");
        fs::write(dir.path().join("a.yaml"), "x").unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(scan(dir.path()), Err(FileError::NotAFile { path }));
    }

    #[test]
    fn a_file_that_is_too_large_is_rejected_by_its_size_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sized = |name: &str, bytes| {
            let path = dir.path().join(name);
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let path = sized("huge.yaml", 1 << 40);
        assert_eq!(scan(&path), Err(FileError::TooLarge { path: path.clone(), bytes: 1 << 40, max_bytes: 16 << 20 }));
        fs::remove_file(path).unwrap();
        let [.., last] = [0, 1, 2, 3, 4].map(|n| sized(&format!("{n}.yaml"), 16 << 20));
        assert_eq!(scan(dir.path()), Err(FileError::TooLarge { path: last, bytes: 80 << 20, max_bytes: 64 << 20 }));
    }

    #[test]
    fn a_keys_file_is_never_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let found = FileScan::of(dir.path(), PathKind::File, SizeLimits::KEYS);
        assert_eq!(found, Err(FileError::NotAFile { path: dir.path().to_owned() }));
    }

    #[test]
    fn a_fresh_file_may_change_unseen_and_an_old_one_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "x").unwrap();
        let found = scan(&path).unwrap();
        let written = found.files[0].modified.unwrap();
        assert!(!found.proves_unchanged(written));
        assert!(!found.proves_unchanged(written + Duration::from_secs(1)));
        assert!(!found.proves_unchanged(written - Duration::from_secs(60)), "a clock that went back");
        assert!(found.proves_unchanged(written + Duration::from_secs(3)));
    }
}
