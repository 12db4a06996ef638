//! Permits of concurrency limits.

use tidegate_core::store::{Counters, PermitRequest, Permits, RuleOptions};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

use super::{ConformanceCounter, Rig, set, tokens};

pub async fn permits_are_acquired_renewed_released_and_expire(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let request = |holder| permit(&counter, holder, 2);
    let acquire = async |holder| {
        let reply = rig.store().acquire(&request(holder)).await;
        let reply = reply.expect("a store that replies");
        (reply.granted, reply.in_use)
    };
    assert_eq!(acquire(1).await, (true, 1));
    assert_eq!(acquire(2).await, (true, 2));
    assert_eq!(acquire(3).await, (false, 2));
    assert_eq!(acquire(2).await, (true, 2), "renewed, not acquired twice");
    rig.store().release(&request(1)).await.expect("a release");
    rig.store().release(&request(1)).await.expect("nothing to release");
    assert_eq!(acquire(3).await, (true, 2));
    rig.advance(Nanos::from_secs(6));
    assert_eq!(acquire(3).await, (true, 2));
    rig.advance(Nanos::from_secs(5));
    assert_eq!(acquire(4).await, (true, 2), "the permit of 2 expired, that of 3 was renewed");
}

/// A late renewal does not reacquire a released permit: else a request that has ended would be counted until its
/// permit expires.
pub async fn a_renewal_acquires_no_permit(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let request = |holder| permit(&counter, holder, 2);
    let renew = async |holder| {
        let reply = rig.store().renew(&request(holder)).await;
        let reply = reply.expect("a store that replies");
        (reply.granted, reply.in_use)
    };
    assert_eq!(renew(1).await, (false, 0), "never acquired");
    for holder in [1, 2] {
        let reply = rig.store().acquire(&request(holder)).await;
        assert!(reply.expect("a store that replies").granted);
    }
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 2), "also when all are in use");
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 1), "by its whole lifetime each time");
    assert_eq!(renew(2).await, (false, 1), "expired");
    rig.store().release(&request(1)).await.expect("a release");
    assert_eq!(renew(1).await, (false, 0), "released");
}

/// A node that restores permits may know an older expiry than the node that renewed last.
pub async fn a_permit_acquired_again_expires_no_sooner(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let whole = permit(&counter, 1, 1);
    let older = PermitRequest { ttl: Nanos::from_secs(3), ..whole };
    for request in [whole, older] {
        let reply = rig.store().acquire(&request).await.expect("a store that replies");
        assert!(reply.granted);
    }
    rig.advance(Nanos::from_secs(8));
    let other = rig.store().acquire(&permit(&counter, 2, 1)).await;
    assert!(!other.expect("a store that replies").granted, "in use");
    rig.advance(Nanos::from_secs(3));
    let other = rig.store().acquire(&permit(&counter, 2, 1)).await;
    assert!(other.expect("a store that replies").granted, "expired");
}

pub async fn permits_of_subjects_and_rules_are_separate(rig: &impl Rig) {
    let (one, other) = (ConformanceCounter::new(), ConformanceCounter::new());
    let rule = RuleName::new("another");
    let own = permit(&one, 1, 1);
    let requests = [
        (own, true),
        (permit(&other, 2, 1), true),
        (PermitRequest { rule: &rule, ..own }, true),
        (PermitRequest { holder: 3, ..own }, false),
    ];
    for (request, granted) in requests {
        let reply = rig.store().acquire(&request).await.expect("a store that replies");
        assert_eq!((reply.granted, reply.in_use), (granted, 1));
    }
}

/// A holder learns of the reset when it renews, and does not reacquire its permit by that.
pub async fn a_reset_frees_the_permits_of_a_rule_and_subject(rig: &impl Rig) {
    let ([counter, other], limit) = ([(); 2].map(|()| ConformanceCounter::new()), tokens(rig, 10));
    let granted = async |request: PermitRequest<'_>| {
        let reply = rig.store().acquire(&request).await.expect("a store that replies");
        reply.granted
    };
    for counter in [&counter, &other] {
        assert!(granted(permit(counter, 1, 1)).await && !granted(permit(counter, 2, 1)).await);
    }
    for freed in [1, 0] {
        let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
        assert_eq!(reset.expect("a store that replies"), freed);
    }
    let renewed = rig.store().renew(&permit(&counter, 1, 1)).await;
    assert!(!renewed.expect("a store that replies").granted);
    assert!(granted(permit(&counter, 2, 1)).await && !granted(permit(&counter, 1, 1)).await);
    assert!(!granted(permit(&other, 2, 1)).await, "of another subject");
}

/// A permit of ten seconds.
fn permit(counter: &ConformanceCounter, holder: u128, max_permits: u32) -> PermitRequest<'_> {
    PermitRequest {
        subject: counter.subject,
        rule: &counter.rule,
        holder,
        max_permits,
        ttl: Nanos::from_secs(10),
        options: &RuleOptions::DEFAULT,
        max_wait: None,
    }
}
