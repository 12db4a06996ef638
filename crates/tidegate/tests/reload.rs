//! Rules and keys that change under load: nothing fails, nothing invalid comes into force, and no decision mixes two
//! versions.

// The helpers below are test code too, which the lint does not see.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::request;
use tidegate::identity::keys::{Digest, hash_line};
use tidegate::live::{FileError, FileState};
use tidegate::{Limiter, LoadError, Policy, PolicyEvent, PolicyFollower};

type SharedLimiter = Arc<Limiter>;

fn limiter(rules: &Path) -> SharedLimiter {
    Arc::new(Limiter::builder().rules_file(rules).build().unwrap())
}

fn follow(limiter: &SharedLimiter, rules: &Path) -> PolicyFollower {
    PolicyFollower::start(limiter, rules, |_| {}).unwrap()
}

/// Waits until `done`, which must come well within a minute even on a busy machine.
#[track_caller]
fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::yield_now();
    }
    began.elapsed()
}

/// Two rules whose names and limits show their version.
fn version(n: usize) -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: first-{n}, by: user, rate: {n}000000/hour }}\n  \
         - {{ name: second-{n}, by: global, rate: {n}000000/hour burst {n}000000 }}\n"
    )
}

/// A version of the rules with one error, a different one for each `n`.
fn broken(n: usize) -> String {
    let whole = version(n);
    // Every second version is broken: counted by those, so that each error has its turn.
    match n / 2 % 4 {
        0 => whole.replace("rate: ", "rate: -"),
        1 => format!("{whole}\nunknown: {n}\n"),
        2 => whole[..whole.len() - 7].to_owned(),
        _ => whole.replace("by: user", "by: ["),
    }
}

#[test]
fn each_error_is_rejected_for_its_own_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let mut reasons: Vec<String> = (1..=1_000)
        .filter(|n| n % 2 == 1)
        .take(4)
        .map(|n| {
            fs::write(&path, broken(n)).unwrap();
            Policy::load(&path).unwrap_err().to_string()
        })
        .collect();
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons.len(), 4, "{reasons:#?}");
}

#[test]
fn a_thousand_reloads_under_load_half_of_them_broken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, version(1)).unwrap();
    let limiter = limiter(&path);
    let follower = follow(&limiter, &path);

    let (stop, decisions) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for user in 0..2 {
            let (limiter, stop, decisions) = (&limiter, &stop, &decisions);
            threads.spawn(move || {
                let words = format!("user=u{user}");
                while !stop.load(Ordering::Relaxed) {
                    let decision = limiter.check_now(request(&words));
                    assert!(decision.allowed());
                    let versions: Vec<_> = decision
                        .limits()
                        .map(|view| view.rule.name().as_str().rsplit('-').next().map(str::to_owned))
                        .collect();
                    assert_eq!(versions.len(), 2);
                    assert_eq!(versions[0], versions[1], "two versions in one decision");
                    decisions.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=1_000 {
            let good = n % 2 == 0;
            let before = limiter.policy().version();
            fs::write(&path, if good { version(n) } else { broken(n) }).unwrap();
            follower.poke();
            if good {
                wait_for("reload", || limiter.policy().version() > before);
                let rules = Arc::clone(&limiter.policy().load().rules);
                assert!(rules.rule(&format!("first-{n}")).is_some());
            } else {
                wait_for("rejection", || follower.rules_state() != FileState::Current);
                assert_eq!(limiter.policy().version(), before, "{}", broken(n));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(decisions.load(Ordering::Relaxed) > 1_000);
}

#[test]
fn a_truncated_file_is_rejected_or_complete() {
    let whole = "version: 1\nrules:\n  - { name: one, by: ip, rate: 10/minute }\n  \
                 - { name: two, by: user, rate: 20/minute burst 5 }\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let mut accepted = Vec::new();
    for end in 0..=whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        if let Ok(policy) = Policy::load(&path) {
            accepted.push((end, policy.rules.rules().len()));
        }
    }
    // Only whole rules are accepted: all of them, or a file that ends after the first.
    assert!(accepted.iter().any(|(end, rules)| (*end, *rules) == (whole.len(), 2)));
    for (end, _) in accepted {
        let text = whole[..end].trim_end();
        assert!(text.ends_with('}'), "accepted: {text}");
    }
}

#[test]
fn an_added_key_is_in_force_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (rules, keys) = (folder.path().join("rules.yaml"), folder.path().join("keys.txt"));
    let text = "version: 1\ntiers: [free, pro]\nkeys_file: keys.txt\nrules:\n  - name: api\n    \
                by: api_key|ip\n    rate: 50/hour\n    tiers: { free: 1/hour, pro: 50/hour }\n";
    let line = |key: &str, tier: &str| format!("{}\n", hash_line(key, tier, "acme").unwrap());
    fs::write(&rules, text).unwrap();
    fs::write(&keys, line("other", "free")).unwrap();
    let limiter = limiter(&rules);
    let _follower = follow(&limiter, &rules);

    let capacity = || {
        let decision = limiter.check_now(request("ip=192.0.2.1 key=new"));
        decision.binding().unwrap().limit.capacity()
    };
    assert_eq!(capacity(), 1, "an unlisted key counts as absent, in the first tier");
    fs::write(&keys, line("other", "free") + &line("new", "pro")).unwrap();
    let took = wait_for("new key", || capacity() == 50);
    eprintln!("a new key was in force after {took:?}");

    // The tiers change places: keys and rules change together, and no key is ever in a wrong tier.
    fs::write(&rules, text.replace("[free, pro]", "[none, free, pro]")).unwrap();
    wait_for("new tiers", || {
        assert!([1, 50].contains(&capacity()));
        limiter.policy().load().rules.tiers().len() == 3
    });
    assert_eq!(capacity(), 50);
}

#[test]
fn rules_whose_keys_cannot_be_read_do_not_come_into_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let text = "version: 1\ntiers: [free]\nkeys_file: missing.txt\nrules: [{ name: a, by: api_key, rate: 1/hour }]";
    fs::write(&path, text).unwrap();
    match Policy::load(&path) {
        Err(LoadError::Files(reason)) => assert!(reason.to_string().contains("missing.txt")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vanished_file_leaves_the_last_good_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, version(1)).unwrap();
    let limiter = limiter(&path);
    let follower = follow(&limiter, &path);
    fs::remove_file(&path).unwrap();
    follower.poke();
    wait_for("stale state", || follower.rules_state() != FileState::Current);
    assert!(limiter.policy().load().rules.rule("first-1").is_some());
    fs::write(&path, version(2)).unwrap();
    wait_for("return", || limiter.policy().load().rules.rule("first-2").is_some());
}

/// Rules and keys in one folder, followed, and the reported events.
struct ReloadFixture {
    folder: tempfile::TempDir,
    limiter: SharedLimiter,
    follower: PolicyFollower,
    events: Arc<Mutex<Vec<String>>>,
}

const CLOSED: &str = "version: 1\nrules: [{ name: closed, by: ip, rate: 1/hour }]\n";

/// Rules that name a keys file and the tiers its keys may be in.
fn with_keys(file: &str, tiers: &str) -> String {
    format!(
        "version: 1\ntiers: [{tiers}]\nkeys_file: {file}\n\
         rules: [{{ name: api, by: api_key|ip, rate: 1/hour }}]\n"
    )
}

fn key(key: &str, tier: &str) -> String {
    format!("{}\n", hash_line(key, tier, "acme").unwrap())
}

impl ReloadFixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let rules = folder.path().join("rules.yaml");
        let limiter = limiter(&rules);
        let events = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&events);
        let record = move |event: PolicyEvent<'_>| {
            let line = match event {
                PolicyEvent::Rules(FileState::Current) => "rules loaded",
                PolicyEvent::Rules(FileState::Stale(_)) => "rules rejected",
                PolicyEvent::Keys(FileState::Current) => "keys loaded",
                PolicyEvent::Keys(FileState::Stale(_)) => "keys rejected",
            };
            recorded.lock().unwrap().push(line.to_owned());
        };
        let follower = PolicyFollower::start(&limiter, &rules, record).unwrap();
        ReloadFixture { folder, limiter, follower, events }
    }

    /// Atomically, by renaming: no reader sees half a file, and no half is rejected on the way.
    fn save(&self, name: &str, text: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.folder.path().join(name)).unwrap();
    }

    fn knows(&self, key: &str) -> bool {
        let policy = self.limiter.policy().load();
        let keys = policy.keys.as_ref();
        keys.is_some_and(|keys| keys.get(&Digest::of(key)).is_some())
    }

    #[track_caller]
    fn wait_rejected(&self, what: &str) {
        wait_for(what, || match what {
            "rules" => is_rejected(&self.follower.rules_state()),
            _ => self.follower.keys_state().as_ref().is_some_and(is_rejected),
        });
    }

    #[track_caller]
    fn wait_current(&self) {
        wait_for("current rules and keys", || {
            self.follower.rules_state() == FileState::Current
                && self.follower.keys_state().is_none_or(|keys| keys == FileState::Current)
        });
    }
}

fn is_rejected(state: &FileState) -> bool {
    matches!(state, FileState::Stale(FileError::Rejected { .. }))
}

/// Such rules stayed rejected for good: the rejection was remembered, and nothing watched the missing file.
#[test]
fn rules_saved_before_the_keys_file_they_name_come_into_force_with_it() {
    let fixture = ReloadFixture::new(&[("rules.yaml", CLOSED)]);
    fixture.save("rules.yaml", &with_keys("keys.txt", "free"));
    fixture.wait_rejected("rules");
    fixture.save("keys.txt", &key("a", "free"));
    wait_for("the key", || fixture.knows("a"));
    fixture.wait_current();
    fixture.save("keys.txt", &key("b", "free"));
    wait_for("the next key", || fixture.knows("b") && !fixture.knows("a"));
}

#[test]
fn keys_in_force_are_followed_while_rejected_rules_wait_for_others() {
    let files = [("rules.yaml", &*with_keys("old.txt", "free")), ("old.txt", &key("a", "free"))];
    let fixture = ReloadFixture::new(&files);
    fixture.save("rules.yaml", &with_keys("new.txt", "free"));
    fixture.wait_rejected("rules");
    fixture.save("old.txt", &key("b", "free"));
    wait_for("the key in the old file", || fixture.knows("b") && !fixture.knows("a"));
    assert!(is_rejected(&fixture.follower.rules_state()));
    fixture.save("new.txt", &key("c", "unknown"));
    fixture.save("new.txt", &key("c", "free"));
    wait_for("the key in the new file", || fixture.knows("c") && !fixture.knows("b"));
    fixture.wait_current();
}

/// Both stayed rejected for good, each valid only with the other.
#[test]
fn a_tier_renamed_in_rules_and_keys_comes_into_force_in_either_order() {
    let rules = with_keys("keys.txt", "free, pro");
    let renamed = with_keys("keys.txt", "free, gold");
    for rules_first in [true, false] {
        let fixture = ReloadFixture::new(&[("rules.yaml", &rules), ("keys.txt", &key("a", "pro"))]);
        let saves = [("rules", "rules.yaml", &renamed), ("keys", "keys.txt", &key("b", "gold"))];
        let [first, second] = if rules_first { saves } else { [saves[1], saves[0]] };
        fixture.save(first.1, first.2);
        fixture.wait_rejected(first.0);
        assert!(fixture.knows("a"));
        fixture.save(second.1, second.2);
        wait_for("the renamed tier", || fixture.knows("b") && !fixture.knows("a"));
        fixture.wait_current();
    }
}

/// The watch still took the old keys for loaded, loaded nothing, and a revoked key went on working.
#[test]
fn keys_loaded_with_the_rules_can_be_reverted() {
    let old = key("kept", "free");
    let files = [("rules.yaml", &*with_keys("keys.txt", "free")), ("keys.txt", &old)];
    let fixture = ReloadFixture::new(&files);
    fixture.save("keys.txt", &(old.clone() + &key("revoked", "pro")));
    fixture.wait_rejected("keys");
    fixture.save("rules.yaml", &with_keys("keys.txt", "free, pro"));
    wait_for("the new key", || fixture.knows("revoked"));
    fixture.wait_current();
    fixture.save("keys.txt", &old);
    wait_for("the old keys", || fixture.knows("kept") && !fixture.knows("revoked"));
}

/// Valid rules over valid rules were not reported, so that log, hash and metrics stayed old.
#[test]
fn every_version_that_comes_into_force_is_reported() {
    let fixture = ReloadFixture::new(&[("rules.yaml", &version(1))]);
    let digest = || *fixture.limiter.policy().load().digest();
    let mut digests = vec![digest()];
    for n in 2..=4 {
        fixture.save("rules.yaml", &version(n));
        fixture.follower.poke();
        wait_for("reports", || fixture.events.lock().unwrap().len() == n);
        digests.push(digest());
    }
    assert_eq!(*fixture.events.lock().unwrap(), ["rules loaded"; 4]);
    digests.dedup();
    assert_eq!(digests.len(), 4, "the digest is of the rules in force");
    fixture.save("rules.yaml", &broken(5));
    fixture.wait_rejected("rules");
    assert_eq!(digests.last(), Some(&digest()), "not of rejected rules");
}

#[test]
fn a_keys_file_no_longer_named_has_no_state() {
    let files = [("rules.yaml", &*with_keys("keys.txt", "free")), ("keys.txt", &key("a", "free"))];
    let fixture = ReloadFixture::new(&files);
    fixture.save("keys.txt", "not a key\n");
    fixture.wait_rejected("keys");
    fixture.save("rules.yaml", CLOSED);
    wait_for("no keys", || fixture.follower.keys_state().is_none());
    fixture.wait_current();
    assert!(!fixture.knows("a"));
}
