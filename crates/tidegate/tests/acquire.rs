//! Open requests on the memory store: which rules need a permit, in what order, and what a denial leaves behind.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::rules::{SourceFile, parse};
use tidegate::stores::memory::MemoryStore;
use tidegate::{Acquired, DecisionKind, Limiter, LimiterBuilder, OpenRequests, Policy, Request, Secret, Ticket};
use tidegate_core::units::Nanos;

const START: Nanos = Nanos::from_secs(1_700_000_000);
const TTL: Nanos = Nanos::from_secs(10);

type AcquireBuilder = LimiterBuilder<Arc<ManualClock>>;

struct AcquireFixture {
    clock: Arc<ManualClock>,
    limiter: Limiter<MemoryStore<Arc<ManualClock>>>,
    tokio: tokio::runtime::Runtime,
}

impl AcquireFixture {
    fn new(rules: &str) -> Self {
        AcquireFixture::with(rules, |builder| builder)
    }

    fn with(rules: &str, change: impl FnOnce(AcquireBuilder) -> AcquireBuilder) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let builder = Limiter::builder().clock(Arc::clone(&clock)).policy(policy(rules));
        AcquireFixture {
            limiter: change(builder).build().unwrap(),
            clock,
            tokio: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        }
    }

    fn acquire(&self, words: &str) -> Acquired {
        let words = words.split(' ').filter_map(|word| word.split_once('='));
        let request = words.fold(Request::default(), |all, (name, value)| all.with(name.to_owned(), value.to_owned()));
        self.tokio.block_on(self.limiter.acquire(request, TTL.duration())).unwrap()
    }

    /// Opens a request, or returns the rule that denies it.
    fn open(&self, words: &str) -> Result<Ticket, String> {
        match self.acquire(words) {
            Acquired::Open { permit, .. } => Ok(permit),
            Acquired::Full(full) => Err(format!("{} {}/{}", full.rule, full.open, full.max_permits)),
            Acquired::Denied(decision) => Err(format!("{:?}", decision.kind())),
        }
    }

    #[track_caller]
    fn check(&self, words: &str, denied: Option<&str>) -> Option<Ticket> {
        let opened = self.open(words);
        assert_eq!(opened.as_ref().err().map(String::as_str), denied, "{words}");
        opened.ok()
    }

    fn release(&self, ticket: &Ticket) {
        self.tokio.block_on(self.limiter.release(ticket)).unwrap();
    }

    fn renew(&self, ticket: &Ticket) -> bool {
        self.tokio.block_on(self.limiter.renew(ticket)).unwrap()
    }

    fn change(&self, rules: &str) {
        let changed = self.limiter.policy().replace_with(|| Ok::<_, String>(policy(rules)));
        changed.unwrap();
    }

    fn counted(&self) -> Vec<(String, u64)> {
        let of = |open: OpenRequests| (open.rule.to_string(), open.open);
        self.limiter.open_requests().into_iter().map(of).collect()
    }
}

fn policy(rules: &str) -> Policy {
    let text = format!("version: 1\nrules:\n{rules}");
    Policy::of(parse(&[SourceFile { name: "rules.yaml", text: &text }]).unwrap())
}

#[test]
fn each_subject_has_its_own_limit_and_all_share_the_global_one() {
    let fixture = AcquireFixture::new(
        "  - { name: user, by: user, concurrent: 2 }\n  - { name: all, by: global, concurrent: 3 }",
    );
    let first = fixture.check("user=ada", None).unwrap();
    fixture.check("user=ada", None);
    fixture.check("user=ada", Some("user 2/2"));
    fixture.check("user=bob", None);
    fixture.check("user=eve", Some("all 3/3"));
    fixture.check("user=bob", Some("all 3/3"));
    fixture.release(&first);
    // Neither denial has kept the permit of the narrower rule.
    fixture.check("user=eve", None);
    assert_eq!(fixture.counted(), [("user".into(), 3), ("all".into(), 3)]);
}

#[test]
fn the_narrow_rule_is_checked_first_wherever_it_is_written() {
    let fixture = AcquireFixture::new(
        "  - { name: all, by: global, concurrent: 1 }\n  - { name: user, by: user, concurrent: 1 }",
    );
    fixture.check("user=ada", None);
    fixture.check("user=ada", Some("user 1/1"));
    fixture.check("user=bob", Some("all 1/1"));
}

#[test]
fn rules_that_do_not_apply_or_are_replaced_need_no_permit() {
    let fixture = AcquireFixture::new(
        "  - { name: up, match: { path: /up }, by: user, concurrent: 1, replaces: [all] }\n  \
           - { name: all, by: user, concurrent: 1 }\n  \
           - { name: off, by: user, concurrent: 1, mode: off }",
    );
    fixture.check("user=ada path=/up", None);
    fixture.check("user=ada path=/down", None);
    fixture.check("user=ada path=/up", Some("up 1/1"));
    fixture.check("user=ada path=/down", Some("all 1/1"));
}

/// A rule without a rate removed the limit that it replaces from every check, which it does not concern.
#[test]
fn a_rule_without_a_rate_replaces_others_only_for_an_acquire() {
    let fixture = AcquireFixture::new(
        "  - { name: all, by: global, rate: 1/hour }\n  \
           - { name: up, match: { path: /up }, by: user, concurrent: 5, replaces: [all] }",
    );
    let decided = |path: &str| {
        let request = Request::default().with("user", "ada").with("path", path.to_owned());
        fixture.limiter.check_now(request).allowed()
    };
    fixture.check("user=ada path=/up", None);
    fixture.check("user=ada path=/up", None);
    assert!(decided("/up"), "acquiring has charged `all` nothing");
    assert!(!decided("/up"), "a check comes under `all`");
    assert!(!decided("/down"));
    fixture.check("user=ada path=/up", None);
    let unlimited = AcquireFixture::new(
        "  - { name: all, by: global, rate: 1/hour }\n  \
           - { name: up, by: user, rate: unlimited, concurrent: 5, replaces: [all] }",
    );
    for _ in 0..3 {
        let decision = unlimited.limiter.check_now(Request::default());
        assert!(decision.allowed(), "`rate: unlimited` is a rate");
    }
}

#[test]
fn a_shadow_rule_denies_nothing() {
    for rules in ["  - { name: r, by: user, concurrent: 1, mode: shadow }", "  - { name: r, by: user, concurrent: 1 }"]
    {
        let fixture = if rules.contains("shadow") {
            AcquireFixture::new(rules)
        } else {
            AcquireFixture::with(rules, LimiterBuilder::shadow)
        };
        fixture.check("user=ada", None);
        let Acquired::Open { permit, limits, .. } = fixture.acquire("user=ada") else {
            panic!("it is in shadow mode");
        };
        assert_eq!((limits[0].granted, limits[0].open), (false, 1));
        fixture.release(&permit);
        assert_eq!(fixture.counted(), [("r".into(), 1)], "the first still has its permit");
    }
}

#[test]
fn a_full_rule_charges_nothing_and_a_request_denied_by_a_rate_holds_no_permit() {
    let fixture =
        AcquireFixture::new("  - { name: r, by: user, concurrent: 1, rate: 2/hour, algorithm: fixed-window }");
    let first = fixture.check("user=ada", None).unwrap();
    for _ in 0..5 {
        fixture.check("user=ada", Some("r 1/1"));
    }
    fixture.release(&first);
    let Acquired::Open { permit, decision, .. } = fixture.acquire("user=ada") else {
        panic!("one is left");
    };
    assert_eq!(decision.binding().unwrap().reading.figures.remaining, 0);
    fixture.release(&permit);
    for _ in 0..3 {
        let Acquired::Denied(decision) = fixture.acquire("user=ada") else {
            panic!("the rate is used up");
        };
        assert!(matches!(decision.kind(), DecisionKind::Deny(_)));
    }
    assert_eq!(fixture.counted(), [("r".into(), 0)]);
}

#[test]
fn a_permit_expires_and_a_change_of_rules_keeps_open_requests() {
    let fixture = AcquireFixture::new("  - { name: r, by: user, concurrent: 2 }");
    let first = fixture.check("user=ada", None).unwrap();
    fixture.check("user=ada", None);
    fixture.clock.advance(Nanos::from_secs(9));
    assert!(fixture.renew(&first));
    fixture.check("user=ada", Some("r 2/2"));
    fixture.clock.advance(Nanos::from_secs(1));
    assert_eq!(fixture.counted(), [("r".into(), 1)]);
    fixture.change("  - { name: r, by: user, concurrent: 1 }");
    fixture.check("user=ada", Some("r 1/1"));
    fixture.change("  - { name: s, by: user, concurrent: 1 }");
    assert!(fixture.renew(&first), "of a rule that is gone");
    fixture.change("  - { name: r, by: user, concurrent: 1 }");
    fixture.check("user=ada", Some("r 1/1"));
    fixture.release(&first);
    fixture.check("user=ada", None);
}

#[test]
fn a_reset_releases_the_permits_of_one_subject_for_good() {
    let fixture = AcquireFixture::new(
        "  - { name: most, by: user, concurrent: 2 }\n  \
           - { name: both, by: user, concurrent: 9, rate: 9/hour, algorithm: fixed-window }\n  \
           - { name: found, by: user, concurrent: adaptive }",
    );
    let stuck = [(); 2].map(|()| fixture.check("user=ada", None).unwrap());
    let bob = fixture.check("user=bob", None).unwrap();
    fixture.check("user=ada", Some("most 2/2"));
    let ada = Request::default().with("user", "ada");
    let reset = fixture.tokio.block_on(fixture.limiter.view().reset(ada));
    assert_eq!(reset.unwrap(), 3 * 2 + 1, "permits, and the counter of a rate");
    let counted = |open: u64| ["most", "both", "found"].map(|rule| (rule.to_owned(), open));
    assert_eq!(fixture.counted(), counted(1));
    for _ in 0..2 {
        assert!(stuck.iter().all(|ticket| !fixture.renew(ticket)));
    }
    assert_eq!(fixture.counted(), counted(1));
    fixture.check("user=ada", None);
    fixture.check("user=ada", None);
    fixture.check("user=ada", Some("most 2/2"));
    assert!(fixture.renew(&bob));
}

/// A reset of one user once freed the permits of shared limits, and all other users were admitted a second time.
#[test]
fn a_reset_leaves_permits_of_shared_counters_alone() {
    let fixture = AcquireFixture::new(
        "  - { name: own, by: user, concurrent: 5 }\n  \
           - { name: team, by: team, concurrent: 3 }\n  \
           - { name: all, by: global, concurrent: 3, rate: 9/hour }",
    );
    let others = [(); 3].map(|()| fixture.check("user=bob", None).unwrap());
    fixture.check("user=ada", Some("team 3/3"));
    let ada = Request::default().with("user", "ada");
    let reset = fixture.tokio.block_on(fixture.limiter.view().reset(ada));
    assert_eq!(reset.unwrap(), 0);
    assert!(others.iter().all(|ticket| fixture.renew(ticket)));
    fixture.check("user=ada", Some("team 3/3"));
}

#[test]
fn a_list_opens_without_permits_or_denies() {
    let text = "version: 1\nallow: [192.0.2.1]\nblock: [192.0.2.2]\n\
                rules: [{ name: r, by: global, concurrent: 1 }]";
    let limiter = Limiter::from_yaml(text).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let from = |ip: &str| Request { ip: Some(ip.parse().unwrap()), ..Request::default() };
    for _ in 0..3 {
        let allowed = tokio.block_on(limiter.acquire(from("192.0.2.1"), TTL.duration()));
        assert!(matches!(allowed, Ok(Acquired::Open { limits, .. }) if limits.is_empty()));
        let blocked = tokio.block_on(limiter.acquire(from("192.0.2.2"), TTL.duration()));
        assert!(matches!(blocked, Ok(Acquired::Denied(_))));
    }
}

/// The limit is twenty at first, and grows as long as the latency does not.
#[test]
fn an_adaptive_limit_grows_with_usage_and_falls_with_latency() {
    let fixture = AcquireFixture::new("  - { name: r, by: user, concurrent: adaptive }");
    let fill = || -> Vec<Ticket> { std::iter::from_fn(|| fixture.open("user=ada").ok()).collect() };
    let rounds = |took: Nanos| {
        let mut max = 0;
        for _ in 0..20 {
            let open = fill();
            fixture.clock.advance(took);
            open.iter().for_each(|ticket| fixture.release(ticket));
            max = open.len();
        }
        max
    };
    assert_eq!(fill().len(), 20);
    fixture.clock.advance(TTL);
    let grown = rounds(Nanos::from_millis(10));
    assert!(grown > 60, "{grown}");
    let slow = rounds(Nanos::from_secs(1));
    assert!(slow < 30, "{slow}");
    let adaptive = fixture.limiter.open_requests()[0].adaptive;
    assert!(adaptive.is_some_and(|limit| limit < 30), "{adaptive:?}");
    // A caller that dies adds no sample, and its permits expire.
    let dead = fill().len();
    fixture.check("user=ada", Some(&*format!("r {dead}/{dead}")));
    fixture.clock.advance(TTL);
    assert_eq!(fill().len(), dead);
}

/// Charges were counted under one secret and permits under another, when it was replaced in between.
#[test]
fn an_acquire_is_counted_under_one_secret() {
    let limiter = Arc::new_cyclic(|limiter: &std::sync::Weak<Limiter<_>>| {
        let (limiter, drawn) = (limiter.clone(), std::sync::atomic::AtomicU64::new(0));
        let rules = policy("  - { name: r, by: user, rate: 1/hour, concurrent: 1 }");
        let builder = Limiter::builder().policy(rules).clock(ManualClock::at(START)).id_source(move || {
            // An id is drawn after the charges are planned and before the permits are.
            if let Some(limiter) = limiter.upgrade() {
                limiter.use_secret(Secret::from_bytes(b"fedcba9876543210").unwrap());
            }
            drawn.fetch_add(1, std::sync::atomic::Ordering::Relaxed).into()
        });
        builder.secret(Secret::from_bytes(b"0123456789abcdef").unwrap()).build().unwrap()
    });
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ada = || Request::default().with("user", "ada");
    for _ in 0..2 {
        let acquired = tokio.block_on(limiter.acquire(ada(), TTL.duration())).unwrap();
        assert!(matches!(acquired, Acquired::Open { .. }), "{acquired:?}");
    }
    let third = tokio.block_on(limiter.acquire(ada(), TTL.duration())).unwrap();
    assert!(matches!(third, Acquired::Full(_)), "{third:?}");
}
