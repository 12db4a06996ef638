//! Slots of what may be open at once.

use tidegate_core::store::{PermitRequest, RuleOptions, Store};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

use super::{ConformanceCounter, Rig, set, tokens};

pub async fn slots_are_held_renewed_released_and_expire(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let hold = |holder| permit(&counter, holder, 2);
    let take = async |holder| {
        let held = rig.store().acquire(&hold(holder)).await;
        let held = held.expect("a store that answers");
        (held.granted, held.in_use)
    };
    assert_eq!(take(1).await, (true, 1));
    assert_eq!(take(2).await, (true, 2));
    assert_eq!(take(3).await, (false, 2));
    assert_eq!(take(2).await, (true, 2), "renewed, not taken twice");
    rig.store().release(&hold(1)).await.expect("a release");
    rig.store()
        .release(&hold(1))
        .await
        .expect("nothing to release");
    assert_eq!(take(3).await, (true, 2));
    rig.advance(Nanos::from_secs(6));
    assert_eq!(take(3).await, (true, 2));
    rig.advance(Nanos::from_secs(5));
    assert_eq!(
        take(4).await,
        (true, 2),
        "the slot of 2 expired, that of 3 was renewed"
    );
}

/// However late a renewal comes, what was given back stays so: else a request that has ended would be
/// open until its slot expires.
pub async fn a_renewal_takes_no_slot(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let hold = |holder| permit(&counter, holder, 2);
    let renew = async |holder| {
        let held = rig.store().renew(&hold(holder)).await;
        let held = held.expect("a store that answers");
        (held.granted, held.in_use)
    };
    assert_eq!(renew(1).await, (false, 0), "never taken");
    for holder in [1, 2] {
        let held = rig.store().acquire(&hold(holder)).await;
        assert!(held.expect("a store that answers").granted);
    }
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 2), "also where all is taken");
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 1), "by its whole length each time");
    assert_eq!(renew(2).await, (false, 1), "expired");
    rig.store().release(&hold(1)).await.expect("a release");
    assert_eq!(renew(1).await, (false, 0), "given back");
}

/// A node that puts back what it remembers may know an older end than the node that renewed last.
pub async fn a_slot_taken_again_ends_no_sooner(rig: &impl Rig) {
    let counter = ConformanceCounter::new();
    let whole = permit(&counter, 1, 1);
    let older = PermitRequest {
        ttl: Nanos::from_secs(3),
        ..whole
    };
    for hold in [whole, older] {
        let held = rig
            .store()
            .acquire(&hold)
            .await
            .expect("a store that answers");
        assert!(held.granted);
    }
    rig.advance(Nanos::from_secs(8));
    let other = rig.store().acquire(&permit(&counter, 2, 1)).await;
    assert!(!other.expect("a store that answers").granted, "it is held");
    rig.advance(Nanos::from_secs(3));
    let other = rig.store().acquire(&permit(&counter, 2, 1)).await;
    assert!(other.expect("a store that answers").granted, "no longer");
}

pub async fn slots_of_subjects_and_rules_are_apart(rig: &impl Rig) {
    let (one, other) = (ConformanceCounter::new(), ConformanceCounter::new());
    let rule = RuleName::new("another");
    let own = permit(&one, 1, 1);
    let holds = [
        (own, true),
        (permit(&other, 2, 1), true),
        (PermitRequest { rule: &rule, ..own }, true),
        (PermitRequest { holder: 3, ..own }, false),
    ];
    for (hold, drawn) in holds {
        let held = rig
            .store()
            .acquire(&hold)
            .await
            .expect("a store that answers");
        assert_eq!((held.granted, held.in_use), (drawn, 1));
    }
}

/// Whoever held one is told so, and does not get it back by renewing it.
pub async fn a_reset_frees_the_slots_of_a_rule_and_subject(rig: &impl Rig) {
    let ([counter, other], limit) = ([(); 2].map(|()| ConformanceCounter::new()), tokens(rig, 10));
    let held = async |hold: PermitRequest<'_>| {
        let held = rig
            .store()
            .acquire(&hold)
            .await
            .expect("a store that answers");
        held.granted
    };
    for counter in [&counter, &other] {
        assert!(held(permit(counter, 1, 1)).await && !held(permit(counter, 2, 1)).await);
    }
    for freed in [1, 0] {
        let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
        assert_eq!(reset.expect("a store that answers"), freed);
    }
    let renewed = rig.store().renew(&permit(&counter, 1, 1)).await;
    assert!(!renewed.expect("a store that answers").granted);
    assert!(held(permit(&counter, 2, 1)).await && !held(permit(&counter, 1, 1)).await);
    assert!(!held(permit(&other, 2, 1)).await, "of another subject");
}

/// A slot of ten seconds.
fn permit(counter: &ConformanceCounter, holder: u128, max_permits: u32) -> PermitRequest<'_> {
    PermitRequest {
        subject: counter.subject,
        rule: &counter.rule,
        holder,
        max_permits,
        ttl: Nanos::from_secs(10),
        options: &RuleOptions::DEFAULT,
    }
}
