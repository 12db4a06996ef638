//! What is there to read, without reading it: files, their sizes and when they last changed.
//!
//! Two equal surveys around a read mean that nothing moved in between. Links are followed: what
//! counts is the file at the end (Kubernetes puts two links before it). Nothing larger than the
//! limits gets past here, and nothing that blocks when opened.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::state::Why;

/// File times may be this coarse, so a file this fresh can change again and look the same.
const COARSEST_FILE_TIME: Duration = Duration::from_secs(2);

/// The most that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of one file.
    pub file_bytes: u64,
    /// Of all files of a folder.
    pub total_bytes: u64,
}

impl Limits {
    /// Of rules: 16 MiB a file, 64 MiB a folder.
    pub const RULES: Limits = Limits {
        file_bytes: 16 << 20,
        total_bytes: 64 << 20,
    };
    /// Of a keys file: 256 MiB.
    pub const KEYS: Limits = Limits {
        file_bytes: 256 << 20,
        total_bytes: 256 << 20,
    };
}

/// What a watched path may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    File,
    FileOrFolder(Pick),
}

/// Which files of a folder count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pick {
    /// `*.yaml` and `*.yml` in the folder itself, without what editors and Kubernetes leave beside them.
    #[default]
    Rules,
    /// Every file, also in folders below, as the Envoy reference service reads them. Names that begin
    /// with two dots never count: Kubernetes keeps its own copies under those.
    Every {
        /// Whether names that begin with one dot do.
        dot_files: bool,
    },
}

/// How far below a folder files are looked for.
const DEEPEST: usize = 8;

/// The files there are to read, in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Survey {
    pub(super) files: Vec<Found>,
}

/// One file, as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    modified: Option<SystemTime>,
    inode: Inode,
}

impl Survey {
    pub(super) fn of(path: &Path, shape: Shape, limits: Limits) -> Result<Self, Why> {
        let about = look_at(path)?;
        let files = if !about.is_dir() {
            vec![Found::of(path.to_owned(), &about)?]
        } else if let Shape::FileOrFolder(pick) = shape {
            folder(path, pick)?
        } else {
            return Err(Why::NotAFile {
                path: path.to_owned(),
            });
        };
        within(limits, &files)?;
        Ok(Survey { files })
    }

    /// Whether an equal survey made later proves equal contents: not if a file was touched so
    /// shortly before `seen_at` that a second write could bear the same time.
    pub(super) fn is_proof(&self, seen_at: SystemTime) -> bool {
        let is_old = |age: Option<Duration>| age.is_some_and(|age| age > COARSEST_FILE_TIME);
        self.ages(seen_at).all(is_old)
    }

    /// Whether a file was touched that shortly before `seen_at`. One with a time to come is not.
    pub(super) fn is_fresh(&self, seen_at: SystemTime) -> bool {
        let is_young = |age: Option<Duration>| age.is_some_and(|age| age <= COARSEST_FILE_TIME);
        self.ages(seen_at).any(is_young)
    }

    /// How long before `seen_at` files were touched; nothing for times to come and where the system does not say.
    fn ages(&self, seen_at: SystemTime) -> impl Iterator<Item = Option<Duration>> {
        let times = self.files.iter();
        let times = times.flat_map(|file| [file.modified, file.inode.changed()]);
        times.map(move |at| seen_at.duration_since(at?).ok())
    }
}

impl Found {
    fn of(path: PathBuf, about: &Metadata) -> Result<Self, Why> {
        if !about.is_file() {
            return Err(Why::NotAFile { path });
        }
        let (len, modified, inode) = (about.len(), about.modified().ok(), Inode::of(about));
        Ok(Found {
            path,
            len,
            modified,
            inode,
        })
    }
}

/// Which file this is, whatever its name, and when it last changed in any way. Empty where the
/// system does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Inode {
    device: u64,
    number: u64,
    changed_secs: i64,
    changed_nanos: i64,
}

impl Inode {
    #[cfg(unix)]
    fn of(about: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Inode {
            device: about.dev(),
            number: about.ino(),
            changed_secs: about.ctime(),
            changed_nanos: about.ctime_nsec(),
        }
    }

    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Self {
        Inode {
            device: 0,
            number: 0,
            changed_secs: 0,
            changed_nanos: 0,
        }
    }

    fn changed(self) -> Option<SystemTime> {
        let [secs, nanos] = [self.changed_secs, self.changed_nanos].map(|n| u64::try_from(n).ok());
        SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(secs?) + Duration::from_nanos(nanos?))
    }
}

fn look_at(path: &Path) -> Result<Metadata, Why> {
    fs::metadata(path).map_err(|error| because(path, &error))
}

/// Why something could not be read, from what the system said.
pub(super) fn because(path: &Path, error: &io::Error) -> Why {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => Why::Vanished { path },
        _ => Why::Unreadable {
            path,
            reason: error.to_string(),
        },
    }
}

/// The files of a folder that count.
pub(super) fn files_in(path: &Path, pick: Pick) -> Result<Vec<PathBuf>, Why> {
    let mut paths = Vec::new();
    list(path, pick, DEEPEST, &mut paths)?;
    Ok(paths)
}

fn folder(path: &Path, pick: Pick) -> Result<Vec<Found>, Why> {
    let mut paths = files_in(path, pick)?;
    if paths.is_empty() {
        return Err(Why::EmptyFolder {
            path: path.to_owned(),
        });
    }
    paths.sort_unstable();
    paths
        .into_iter()
        .map(|path| look_at(&path).and_then(|about| Found::of(path, &about)))
        .collect()
}

/// The files that count. Folders below are those that really are: a link to one could lead round.
fn list(path: &Path, pick: Pick, depth: usize, into: &mut Vec<PathBuf>) -> Result<(), Why> {
    let because = |error: io::Error| because(path, &error);
    for entry in fs::read_dir(path).map_err(because)? {
        let entry = entry.map_err(because)?;
        if !entry
            .file_name()
            .to_str()
            .is_some_and(|name| pick.takes(name))
        {
            continue;
        }
        let below = pick != Pick::Rules && entry.file_type().map_err(because)?.is_dir();
        match (below, depth) {
            (false, _) => into.push(entry.path()),
            (true, 0) => return Err(Why::TooDeep { path: entry.path() }),
            (true, _) => list(&entry.path(), pick, depth - 1, into)?,
        }
    }
    Ok(())
}

impl Pick {
    fn takes(self, name: &str) -> bool {
        match self {
            Pick::Rules => is_rules_name(name),
            Pick::Every { dot_files: true } => !name.starts_with(".."),
            Pick::Every { dot_files: false } => !name.starts_with('.'),
        }
    }
}

/// `*.yaml` and `*.yml`, but not what editors and Kubernetes leave beside them: `.x.yaml.swp`,
/// `.#x.yaml`, `#x.yaml#`, `x.yaml~`, `..data`.
fn is_rules_name(name: &str) -> bool {
    let kept = name.ends_with(".yaml") || name.ends_with(".yml");
    kept && !name.starts_with(['.', '#'])
}

fn within(limits: Limits, files: &[Found]) -> Result<(), Why> {
    let mut total = 0u64;
    for file in files {
        total = total.saturating_add(file.len);
        for (bytes, most) in [(file.len, limits.file_bytes), (total, limits.total_bytes)] {
            if bytes > most {
                return Err(Why::TooLarge {
                    path: file.path.clone(),
                    bytes,
                    most,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(path: &Path) -> Result<Survey, Why> {
        Survey::of(path, Shape::FileOrFolder(Pick::Rules), Limits::RULES)
    }

    /// The names, from the folder on.
    fn picked(path: &Path, pick: Pick) -> Vec<String> {
        let found = Survey::of(path, Shape::FileOrFolder(pick), Limits::RULES).unwrap();
        let name = |file: &Found| file.path.strip_prefix(path).unwrap().display().to_string();
        found.files.iter().map(name).collect()
    }

    #[test]
    fn a_folder_gives_its_rules_files_by_name_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            "b.yaml",
            "a.yml",
            "c.yaml~",
            ".c.yaml",
            ".c.yaml.swp",
            "#c.yaml#",
            ".#c.yaml",
            "c.txt",
            "yaml",
        ];
        names
            .iter()
            .for_each(|name| fs::write(dir.path().join(name), "x").unwrap());
        let found = survey(dir.path()).unwrap();
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| file.path.file_name().unwrap())
            .collect();
        assert_eq!(names, ["a.yml", "b.yaml"]);
    }

    /// A mount as Kubernetes makes it, whose copies would count every domain twice.
    #[test]
    fn every_file_is_taken_but_for_what_kubernetes_keeps_for_itself() {
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
        let every = picked(dir.path(), Pick::Every { dot_files: true });
        assert_eq!(
            every,
            [".b", "a.yaml", "below/.hidden/e", "below/d.txt", "c"]
        );
        let plain = picked(dir.path(), Pick::Every { dot_files: false });
        assert_eq!(plain, ["a.yaml", "below/d.txt", "c"]);
        assert_eq!(picked(dir.path(), Pick::Rules), ["a.yaml"]);
    }

    #[test]
    fn folders_in_folders_end_somewhere() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/".repeat(DEEPEST + 1))).unwrap();
        let every = Shape::FileOrFolder(Pick::Every { dot_files: true });
        let found = Survey::of(dir.path(), every, Limits::RULES);
        assert!(matches!(found, Err(Why::TooDeep { .. })), "{found:?}");
    }

    #[test]
    fn a_part_that_cannot_be_read_is_a_fault_of_the_whole_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.yaml");
        fs::write(dir.path().join("a.yaml"), "x").unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(survey(dir.path()), Err(Why::NotAFile { path }));
    }

    #[test]
    fn what_is_too_large_is_refused_by_its_size_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sized = |name: &str, bytes| {
            let path = dir.path().join(name);
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let path = sized("huge.yaml", 1 << 40);
        assert_eq!(
            survey(&path),
            Err(Why::TooLarge {
                path: path.clone(),
                bytes: 1 << 40,
                most: 16 << 20
            })
        );
        fs::remove_file(path).unwrap();
        let [.., last] = [0, 1, 2, 3, 4].map(|n| sized(&format!("{n}.yaml"), 16 << 20));
        assert_eq!(
            survey(dir.path()),
            Err(Why::TooLarge {
                path: last,
                bytes: 80 << 20,
                most: 64 << 20
            })
        );
    }

    #[test]
    fn a_keys_file_is_never_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let found = Survey::of(dir.path(), Shape::File, Limits::KEYS);
        assert_eq!(
            found,
            Err(Why::NotAFile {
                path: dir.path().to_owned()
            })
        );
    }

    #[test]
    fn a_fresh_file_may_change_unseen_and_an_old_one_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "x").unwrap();
        let found = survey(&path).unwrap();
        let written = found.files[0].modified.unwrap();
        assert!(!found.is_proof(written));
        assert!(!found.is_proof(written + Duration::from_secs(1)));
        assert!(
            !found.is_proof(written - Duration::from_secs(60)),
            "a clock that went back"
        );
        assert!(found.is_proof(written + Duration::from_secs(3)));
    }
}
