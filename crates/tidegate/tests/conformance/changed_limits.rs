//! Counters that are found under another limit than the one that made them.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Restore};

use super::{ConformanceCounter, Rig, charge, limit, set, used};

pub async fn a_changed_limit_keeps_what_was_used(rig: &impl Rig) {
    for (old, new) in pairs() {
        let (counter, was) = (ConformanceCounter::new(), limit(rig, old, 10));
        charge(rig, [counter.enforce(&was, 7)]).await;
        let now = limit(rig, new, 20);
        assert_eq!(used(rig, &counter, &now).await, 7, "{old} to {new}");
        let denied = charge(rig, [counter.enforce(&now, 14)]).await;
        assert!(!denied.admitted, "{old} to {new}");
        assert!(charge(rig, [counter.enforce(&now, 13)]).await.admitted, "{old} to {new}");
        assert_eq!(used(rig, &counter, &was).await, 20, "{new} back to {old}: debt");
    }
}

/// Not more, or a client would be denied for what an earlier rule allowed; not less, or a rule that changes back and
/// forth would forget usage.
pub async fn debt_under_a_smaller_limit_is_twice_that_limit(rig: &impl Rig) {
    for (old, new) in pairs() {
        let (large, small) = (limit(rig, old, 100), limit(rig, new, 10));
        let forced = ConformanceCounter::new();
        let now = charge(rig, [forced.enforce(&large, 100)]).await.at;
        let force = set([forced.enforce(&small, 3)]);
        rig.store().force(&force).await.expect("a forced charge");
        assert_eq!(used(rig, &forced, &small).await, 20, "{old} to {new}");
        assert_eq!(used(rig, &forced, &large).await, 20, "and back to {old}");

        let restored = ConformanceCounter::new();
        charge(rig, [restored.enforce(&large, 100)]).await;
        for units in [5, 30] {
            let restore = Restore { charge: restored.enforce(&small, 1), state: small.with_used(units, now) };
            rig.store().restore(&[restore]).await.expect("a state that fits");
            assert_eq!(used(rig, &restored, &small).await, 20, "{old} to {new}");
        }
    }
}

fn pairs() -> impl Iterator<Item = (Algorithm, Algorithm)> {
    let both = |old| Algorithm::ALL.map(|new| (old, new));
    Algorithm::ALL.into_iter().flat_map(both)
}
