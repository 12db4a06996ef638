//! Real files that change under a running watch: what comes into force, and what never does.
//!
//! Contents are valid if they end in `.`; the loader rejects all others, and the value in force is `name=contents` for
//! every file. Scans alone must suffice: polls are an hour apart. Nothing here sleeps for a fixed time: each step
//! waits for the state it needs, or fails after a minute.

// The helpers below are test code too, which the lint does not see.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate::identity::keys::{Digest, KeyTable, hash_line};
use tidegate::live::{FileError, FileSnapshot, FileState, LiveValue, Target, Watch, WatchTiming};
use tidegate_core::units::Nanos;

const TIMING: WatchTiming = WatchTiming {
    scan_interval: Nanos::from_millis(20),
    quiet: Nanos::from_millis(30),
    max_delay: Nanos::from_millis(500),
    poll: Nanos::from_secs(3600),
    fresh_poll: Nanos::from_secs(3600),
};

struct WatchFixture {
    dir: TempDir,
    path: PathBuf,
    live: Arc<LiveValue<String>>,
    load_calls: Arc<Mutex<Vec<String>>>,
    states: Arc<Mutex<Vec<FileState>>>,
    watch: Watch,
}

impl WatchFixture {
    /// Lets `prepare` fill a new folder, then watches `path` in it.
    fn new(path: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let path = dir.path().join(path);
        let live = Arc::new(LiveValue::new("nothing".to_owned()));
        let load_calls = Arc::new(Mutex::new(Vec::new()));
        let states = Arc::new(Mutex::new(Vec::new()));
        let load = {
            let (live, load_calls) = (Arc::clone(&live), Arc::clone(&load_calls));
            move |snapshot: &FileSnapshot| live.replace_with(|| read(snapshot, &load_calls)).map(drop)
        };
        let report = {
            let states = Arc::clone(&states);
            move |state: &FileState| states.lock().unwrap().push(state.clone())
        };
        let watch = Watch::start(Target::rules(&path).timing(TIMING), load, report).unwrap();
        WatchFixture { dir, path, live, load_calls, states, watch }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn in_force(&self) -> String {
        self.live.get().value().clone()
    }

    #[track_caller]
    fn wait_for_value(&self, want: &str) {
        wait_until(
            || self.in_force() == want && self.watch.state() == FileState::Current,
            || format!("{want}, got {} and {:?}", self.in_force(), self.watch.state()),
        );
    }

    /// Waits until the watch is stale for `reason`, with `want` still in force.
    #[track_caller]
    fn wait_for_stale(&self, reason: &FileError, want: &str) {
        let stale = FileState::Stale(reason.clone());
        wait_until(|| self.watch.state() == stale, || format!("{stale:?}, got {:?}", self.watch.state()));
        assert_eq!(self.in_force(), want);
    }

    fn vanished(&self) -> FileError {
        FileError::NotFound { path: self.path.clone() }
    }
}

fn read(snapshot: &FileSnapshot, load_calls: &Mutex<Vec<String>>) -> Result<String, String> {
    let mut all = Vec::new();
    for part in snapshot.files() {
        let text = part.text().map_err(|error| error.to_string())?;
        let name = part.path().file_name().unwrap().to_str().unwrap();
        all.push(format!("{name}={text}"));
    }
    let all = all.join(" ");
    load_calls.lock().unwrap().push(all.clone());
    if all.ends_with('.') { Ok(all) } else { Err(rejection(&all)) }
}

fn rejection(all: &str) -> String {
    format!("`{all}` does not end in a full stop")
}

fn rejected(all: &str) -> FileError {
    FileError::Rejected { reason: rejection(all) }
}

#[track_caller]
fn wait_until(reached: impl Fn() -> bool, wanted: impl Fn() -> String) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {}", wanted());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Atomically, as deployments should: no reader can see the file half written.
fn write(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    let hidden = path.with_file_name(".written");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, path).unwrap();
}

/// Truncated and rewritten, as many editors do.
fn write_in_place(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

fn one_file(dir: &Path) {
    write(dir.join("r.yaml"), "one.");
}

#[test]
fn the_first_look_is_made_before_the_watch_exists() {
    let watched = WatchFixture::new("r.yaml", one_file);
    assert_eq!((watched.in_force().as_str(), watched.watch.state()), ("r.yaml=one.", FileState::Current));
    let missing = WatchFixture::new("r.yaml", |_| {});
    assert_eq!(missing.watch.state(), FileState::Stale(missing.vanished()));
}

#[test]
fn a_file_renamed_over_the_old_one_comes_into_force() {
    let watched = WatchFixture::new("r.yaml", one_file);
    for n in 0..3 {
        write(&watched.path, &format!("{n}."));
        watched.wait_for_value(&format!("r.yaml={n}."));
    }
}

#[test]
fn a_file_rewritten_in_place_comes_into_force() {
    let watched = WatchFixture::new("r.yaml", one_file);
    for n in 0..3 {
        write_in_place(&watched.path, &format!("{n}."));
        watched.wait_for_value(&format!("r.yaml={n}."));
    }
}

#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::symlink;

    /// As the kubelet does it: a new folder, a link to it renamed over `..data`, the old folder removed. The files that
    /// users name are links through `..data` and never change.
    fn publish(mount: &Path, version: &str, text: &str) {
        let (folder, old) = (mount.join(format!("..{version}")), fs::read_link(mount.join("..data")));
        fs::create_dir(&folder).unwrap();
        write(folder.join("r.yaml"), text);
        symlink(format!("..{version}"), mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
        match old {
            Ok(old) => fs::remove_dir_all(mount.join(old)).unwrap(),
            Err(_) => symlink("..data/r.yaml", mount.join("r.yaml")).unwrap(),
        }
    }

    #[test]
    fn a_kubernetes_swap_of_a_file_comes_into_force() {
        let watched = WatchFixture::new("r.yaml", |dir| publish(dir, "v0", "v0."));
        for version in ["v1", "v2", "v3"] {
            publish(watched.dir.path(), version, &format!("{version}."));
            watched.wait_for_value(&format!("r.yaml={version}."));
        }
    }

    #[test]
    fn a_kubernetes_swap_of_a_folder_comes_into_force() {
        let mount = |dir: &Path| {
            fs::create_dir(dir.join("etc")).unwrap();
            publish(&dir.join("etc"), "v0", "v0.");
        };
        let watched = WatchFixture::new("etc", mount);
        for version in ["v1", "v2", "v3"] {
            publish(&watched.file("etc"), version, &format!("{version}."));
            watched.wait_for_value(&format!("r.yaml={version}."));
        }
    }

    #[test]
    fn a_change_of_the_file_behind_a_link_comes_into_force() {
        let watched = WatchFixture::new("r.yaml", |dir| {
            fs::create_dir(dir.join("far")).unwrap();
            write(dir.join("far/real"), "one.");
            symlink("far/real", dir.join("r.yaml")).unwrap();
        });
        write(watched.file("far/real"), "two.");
        watched.wait_for_value("r.yaml=two.");
    }

    #[test]
    fn a_changed_link_between_two_others_comes_into_force() {
        let watched = WatchFixture::new("r.yaml", |dir| {
            fs::create_dir_all(dir.join("between")).unwrap();
            write(dir.join("one"), "one.");
            write(dir.join("two"), "two.");
            symlink("../one", dir.join("between/link")).unwrap();
            symlink("between/link", dir.join("r.yaml")).unwrap();
        });
        symlink("../two", watched.file("between/new")).unwrap();
        fs::rename(watched.file("between/new"), watched.file("between/link")).unwrap();
        watched.wait_for_value("r.yaml=two.");
    }

    #[test]
    fn an_unreadable_file_leaves_the_last_good_value() {
        let watched = WatchFixture::new("r.yaml", one_file);
        fs::remove_file(&watched.path).unwrap();
        symlink("r.yaml", &watched.path).unwrap();
        let is_unreadable = |state| matches!(state, FileState::Stale(FileError::Unreadable { .. }));
        wait_until(|| is_unreadable(watched.watch.state()), || "an unreadable file".to_owned());
        assert_eq!(watched.in_force(), "r.yaml=one.");
    }
}

#[test]
fn a_deleted_file_leaves_the_last_good_value_until_it_is_restored() {
    let watched = WatchFixture::new("r.yaml", one_file);
    fs::remove_file(&watched.path).unwrap();
    watched.wait_for_stale(&watched.vanished(), "r.yaml=one.");
    write(&watched.path, "one.");
    watched.wait_for_value("r.yaml=one.");
    assert_eq!(watched.load_calls.lock().unwrap().len(), 1, "the same contents are not loaded again");
    fs::remove_file(&watched.path).unwrap();
    watched.wait_for_stale(&watched.vanished(), "r.yaml=one.");
    write(&watched.path, "two.");
    watched.wait_for_value("r.yaml=two.");
    let [gone, back] = [FileState::Stale(watched.vanished()), FileState::Current];
    let want = [back.clone(), gone.clone(), back.clone(), gone, back];
    assert_eq!(*watched.states.lock().unwrap(), want, "each change of state is reported once");
}

#[test]
fn a_deleted_parent_folder_is_followed_when_it_is_restored() {
    let watched = WatchFixture::new("a/b/r.yaml", |dir| {
        fs::create_dir_all(dir.join("a/b")).unwrap();
        one_file(&dir.join("a/b"));
    });
    for n in 0..3 {
        fs::remove_dir_all(watched.file("a")).unwrap();
        if n != 1 {
            let wanted = || "a vanished file".to_owned();
            wait_until(|| watched.watch.state() == FileState::Stale(watched.vanished()), wanted);
        }
        fs::create_dir_all(watched.file("a/b")).unwrap();
        write(&watched.path, &format!("{n}."));
        watched.wait_for_value(&format!("r.yaml={n}."));
        write(&watched.path, &format!("{n} again."));
        watched.wait_for_value(&format!("r.yaml={n} again."));
    }
}

/// Kernel events did not show this, nor any later change.
#[test]
fn a_replaced_ancestor_folder_is_followed() {
    let watched = WatchFixture::new("a/b/c/r.yaml", |dir| {
        for (top, text) in [("a", "one."), ("next", "two.")] {
            fs::create_dir_all(dir.join(top).join("b/c")).unwrap();
            write(dir.join(top).join("b/c/r.yaml"), text);
        }
    });
    fs::rename(watched.file("a"), watched.file("last")).unwrap();
    fs::rename(watched.file("next"), watched.file("a")).unwrap();
    watched.wait_for_value("r.yaml=two.");
    write(&watched.path, "three.");
    watched.wait_for_value("r.yaml=three.");
}

#[test]
fn files_are_added_to_and_removed_from_a_folder() {
    let watched = WatchFixture::new("rules", |dir| {
        fs::create_dir(dir.join("rules")).unwrap();
        write(dir.join("rules/b.yaml"), "b.");
    });
    let folder = watched.path.clone();
    assert_eq!(watched.in_force(), "b.yaml=b.");
    write(folder.join("a.yml"), "a.");
    watched.wait_for_value("a.yml=a. b.yaml=b.");
    for ignored in [".c.yaml", "c.yaml~", "#c.yaml#", "c.yaml.swp"] {
        write(folder.join(ignored), "not a rule");
    }
    write(folder.join("b.yaml"), "B.");
    watched.wait_for_value("a.yml=a. b.yaml=B.");
    fs::remove_file(folder.join("a.yml")).unwrap();
    watched.wait_for_value("b.yaml=B.");

    fs::remove_file(folder.join("b.yaml")).unwrap();
    watched.wait_for_stale(&FileError::EmptyFolder { path: folder.clone() }, "b.yaml=B.");
    fs::remove_dir_all(&folder).unwrap();
    watched.wait_for_stale(&watched.vanished(), "b.yaml=B.");
    fs::create_dir(&folder).unwrap();
    write(folder.join("d.yaml"), "d.");
    watched.wait_for_value("d.yaml=d.");
    write(folder.join("d.yaml"), "D.");
    watched.wait_for_value("d.yaml=D.");
}

#[test]
fn a_file_cut_off_at_any_byte_never_comes_into_force() {
    let whole = "rules: [a, b, c], limits: [1, 2, 3], and the end.";
    let watched = WatchFixture::new("r.yaml", |dir| write(dir.join("r.yaml"), whole));
    let version = watched.live.version();
    for end in 0..whole.len() {
        write_in_place(&watched.path, &whole[..end]);
        watched.watch.poke();
        let good = format!("r.yaml={whole}");
        watched.wait_for_stale(&rejected(&format!("r.yaml={}", &whole[..end])), &good);
    }
    assert_eq!(watched.live.version(), version);
    assert!(watched.live.failure().unwrap().times >= whole.len() as u64);
    write(&watched.path, whole);
    watched.wait_for_value(&format!("r.yaml={whole}"));
    assert_eq!(watched.live.version(), version, "contents in force are not loaded again");
}

#[test]
fn rejected_contents_are_not_loaded_again_until_they_change() {
    let watched = WatchFixture::new("r.yaml", one_file);
    write(&watched.path, "bad");
    watched.wait_for_stale(&rejected("r.yaml=bad"), "r.yaml=one.");
    fs::remove_file(&watched.path).unwrap();
    watched.wait_for_stale(&watched.vanished(), "r.yaml=one.");
    write(&watched.path, "bad");
    watched.wait_for_stale(&rejected("r.yaml=bad"), "r.yaml=one.");
    assert_eq!(*watched.load_calls.lock().unwrap(), ["r.yaml=one.", "r.yaml=bad"]);
}

/// Rejected rules may have become valid for reasons outside the file, such as a keys file that now exists.
#[test]
fn rejected_contents_are_loaded_again_on_request() {
    let watched = WatchFixture::new("r.yaml", one_file);
    write(&watched.path, "bad");
    watched.wait_for_stale(&rejected("r.yaml=bad"), "r.yaml=one.");
    watched.watch.poke();
    let load_calls = || watched.load_calls.lock().unwrap().len();
    wait_until(|| load_calls() == 3, || "a second try".to_owned());
    watched.watch.handle().poke();
    wait_until(|| load_calls() == 4, || "a third try".to_owned());
    write(&watched.path, "one.");
    watched.wait_for_value("r.yaml=one.");
    watched.watch.poke();
    drop(watched.watch);
    assert_eq!(watched.load_calls.lock().unwrap().len(), 4, "contents in force are not");
    assert_eq!(
        *watched.states.lock().unwrap(),
        [FileState::Current, FileState::Stale(rejected("r.yaml=bad")), FileState::Current],
        "a repeated rejection is reported once"
    );
}

#[test]
fn every_accepted_change_is_reported() {
    let watched = WatchFixture::new("r.yaml", one_file);
    for n in 2..=4 {
        write(&watched.path, &format!("{n}."));
        watched.wait_for_value(&format!("r.yaml={n}."));
    }
    let reported = || watched.states.lock().unwrap().len();
    wait_until(|| reported() == 4, || format!("four reports, got {}", reported()));
}

#[test]
fn a_handle_neither_keeps_a_watch_alive_nor_needs_it() {
    let watched = WatchFixture::new("r.yaml", one_file);
    let handle = watched.watch.handle();
    drop(watched.watch);
    handle.poke();
    assert_eq!(watched.load_calls.lock().unwrap().len(), 1);
}

#[test]
fn a_reload_loads_unchanged_contents() {
    let watched = WatchFixture::new("r.yaml", one_file);
    watched.watch.reload();
    wait_until(|| watched.live.version() == 3, || "a third version".to_owned());
    assert_eq!(*watched.load_calls.lock().unwrap(), ["r.yaml=one.", "r.yaml=one."]);
}

#[test]
fn a_file_too_large_is_not_read_and_leaves_the_last_good_value() {
    let watched = WatchFixture::new("r.yaml", one_file);
    fs::File::options().write(true).open(&watched.path).unwrap().set_len(1 << 40).unwrap();
    let reason = FileError::TooLarge { path: watched.path.clone(), bytes: 1 << 40, max_bytes: 16 << 20 };
    watched.wait_for_stale(&reason, "r.yaml=one.");
}

/// Watches a file with a loader that calls `meddle` with its path and the number of the call before it reads.
fn meddled(meddle: impl Fn(&Path, usize) + Send + 'static) -> (TempDir, Watch, Arc<Mutex<Vec<String>>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.yaml");
    write(&path, "one.");
    let whole = Arc::new(Mutex::new(Vec::new()));
    let (seen, file, mut calls) = (Arc::clone(&whole), path.clone(), 0);
    let load = move |snapshot: &FileSnapshot| {
        calls += 1;
        meddle(&file, calls);
        snapshot.files()[0].text().map(|text| seen.lock().unwrap().push(text))
    };
    let watch = Watch::start(Target::rules(path).timing(TIMING), load, |_| {}).unwrap();
    (dir, watch, whole)
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_again() {
    let (_dir, watch, whole) = meddled(|path, call| {
        if call == 1 {
            write_in_place(path, "two, written meanwhile.");
        }
    });
    assert_eq!(watch.state(), FileState::Current);
    assert_eq!(*whole.lock().unwrap(), ["two, written meanwhile."]);
}

#[test]
fn a_file_that_keeps_changing_is_not_loaded_until_it_is_stable() {
    let (dir, watch, whole) = meddled(|path, call| {
        if call <= 7 {
            write_in_place(path, &"x".repeat(call));
        }
    });
    let path = dir.path().join("r.yaml");
    assert_eq!(watch.state(), FileState::Stale(FileError::Changing { path }));
    wait_until(|| watch.state() == FileState::Current, || "a stable file".to_owned());
    assert_eq!(*whole.lock().unwrap(), ["xxxxxxx"]);
}

#[test]
fn a_loader_that_panics_is_called_again_with_the_next_contents() {
    let (dir, watch, whole) = meddled(|path, _| assert_ne!(fs::read_to_string(path).unwrap(), "one."));
    assert!(matches!(watch.state(), FileState::Stale(FileError::Rejected { .. })));
    write(dir.path().join("r.yaml"), "two.");
    wait_until(|| watch.state() == FileState::Current, || "the next contents".to_owned());
    assert_eq!(*whole.lock().unwrap(), ["two."]);
}

#[test]
fn a_dropped_watch_has_stopped() {
    let WatchFixture { dir: _dir, watch, live, .. } = WatchFixture::new("r.yaml", one_file);
    assert_eq!(Arc::strong_count(&live), 2);
    drop(watch);
    assert_eq!(Arc::strong_count(&live), 1, "the thread and its loader are gone");
}

#[test]
fn keys_are_reloaded_alone_and_a_bad_file_keeps_the_old_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.txt");
    let line = |key| hash_line(key, "pro", "").unwrap() + "\n";
    write(&path, &line("old"));
    let live = Arc::new(LiveValue::new(KeyTable::default()));
    let table = Arc::clone(&live);
    let load = move |snapshot: &FileSnapshot| {
        let make = || {
            let [part] = snapshot.files() else {
                return Err("one file is watched".to_owned());
            };
            let reader = part.open().map_err(|error| error.to_string())?;
            KeyTable::read("keys.txt", reader, &["free", "pro"]).map_err(|error| error.to_string())
        };
        table.replace_with(make).map(drop)
    };
    let watch = Watch::start(Target::keys(&path).timing(TIMING), load, |_| {}).unwrap();
    let knows = |key: &str| live.load().get(&Digest::of(key)).is_some();
    assert!(knows("old"));
    write(&path, &(line("old") + "raw-key-by-mistake\n"));
    wait_until(|| live.failure().is_some(), || "a rejection".to_owned());
    assert!(knows("old") && !live.failure().unwrap().message.contains("mistake"));
    write(&path, &(line("old") + &line("new")));
    wait_until(|| knows("old") && knows("new"), || "a new key".to_owned());
    drop(watch);
}
