//! Rules and keys that change under load: nothing fails, nothing invalid comes into force, and no
//! decision mixes two versions.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::request;
use tidegate::clock::SystemClock;
use tidegate::identity::keys::hash_line;
use tidegate::live::State;
use tidegate::stores::memory::MemoryStore;
use tidegate::{Follower, Limiter, LoadError, Policy, Secret};

type Shared = Arc<Limiter<MemoryStore<Arc<SystemClock>>>>;

fn limiter(rules: &Path) -> Shared {
    let clock = Arc::new(SystemClock::new());
    let policy = Policy::load(rules).unwrap();
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let store = MemoryStore::new(Arc::clone(&clock));
    Arc::new(Limiter::new(store, policy, secret, clock))
}

fn follow(limiter: &Shared, rules: &Path) -> Follower {
    Follower::start(Arc::clone(limiter.policy()), rules, |_| {}).unwrap()
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

/// Two rules whose names and limits tell which version they are from.
fn version(n: usize) -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: first-{n}, by: user, rate: {n}000000/hour }}\n  \
         - {{ name: second-{n}, by: global, rate: {n}000000/hour burst {n}000000 }}\n"
    )
}

/// A version of the rules with one thing wrong, another for each `n`.
fn broken(n: usize) -> String {
    let whole = version(n);
    match n % 4 {
        0 => whole.replace("rate: ", "rate: -"),
        1 => format!("{whole}\nunknown: {n}\n"),
        2 => whole[..whole.len() - 7].to_owned(),
        _ => whole.replace("by: user", "by: ["),
    }
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
                        .map(|view| {
                            view.rule
                                .name()
                                .as_str()
                                .rsplit('-')
                                .next()
                                .map(str::to_owned)
                        })
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
                wait_for("refusal", || follower.rules_state() != State::Current);
                assert_eq!(limiter.policy().version(), before, "{}", broken(n));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(decisions.load(Ordering::Relaxed) > 1_000);
}

#[test]
fn a_file_cut_anywhere_is_refused_or_complete() {
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
    // What is accepted are whole rules: all of them, or a file that ends after the first.
    assert!(
        accepted
            .iter()
            .any(|(end, rules)| (*end, *rules) == (whole.len(), 2))
    );
    for (end, _) in accepted {
        let text = whole[..end].trim_end();
        assert!(text.ends_with('}'), "accepted: {text}");
    }
}

#[test]
fn an_added_key_is_in_force_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let (rules, keys) = (
        folder.path().join("rules.yaml"),
        folder.path().join("keys.txt"),
    );
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
    assert_eq!(
        capacity(),
        1,
        "an unlisted key counts as absent, in the first tier"
    );
    fs::write(&keys, line("other", "free") + &line("new", "pro")).unwrap();
    let took = wait_for("new key", || capacity() == 50);
    eprintln!("a new key was in force after {took:?}");

    // The tiers change places: keys and rules move together, and no key is ever in a wrong tier.
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
        Err(LoadError::Files(why)) => assert!(why.to_string().contains("missing.txt")),
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
    wait_for("stale state", || follower.rules_state() != State::Current);
    assert!(limiter.policy().load().rules.rule("first-1").is_some());
    fs::write(&path, version(2)).unwrap();
    wait_for("return", || {
        limiter.policy().load().rules.rule("first-2").is_some()
    });
}
