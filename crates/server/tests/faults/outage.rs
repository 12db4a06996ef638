//! Half a minute without the store, for each kind of outage, under steady load.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::ProxyFault;

use crate::fleet::{CLOSED, OPENED};
use crate::history::{RequestRecord, now};
use crate::rates::SHARE;
use crate::scene::{FaultScenario, at_once};
use crate::server::wait_for;

const OUTAGE: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(6);
/// From the first failure until the last node's breaker is open, and until requests in flight have ended.
const ONSET: Duration = Duration::from_secs(2);

/// A kind of outage. Late replies are none: see `glitches`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OutageKind {
    /// And restarted empty.
    Killed,
    Frozen,
    BlackHole,
}

impl OutageKind {
    fn begin(self, scene: &mut FaultScenario) {
        match self {
            OutageKind::Killed => scene.store.kill(),
            OutageKind::Frozen => scene.store.freeze(),
            OutageKind::BlackHole => scene.line.set(ProxyFault::BlackHole),
        }
    }

    fn end(self, scene: &mut FaultScenario) {
        match self {
            OutageKind::Killed => scene.store.restart(),
            OutageKind::Frozen => scene.store.thaw(),
            OutageKind::BlackHole => scene.line.set(ProxyFault::None),
        }
    }
}

/// Once every breaker is open, no decision waits for the store: no further charge is sent that gets no reply. How
/// long the nodes take to be exact again is printed and not asserted: the simulator asserts it.
fn outage(kind: OutageKind) {
    let mut scene = FaultScenario::new();
    let mut unconfirmed = [0; 2];
    let mut opened_at = Nanos::ZERO;
    let played = scene.run(CALM, |scene| {
        kind.begin(scene);
        wait_for("every breaker to open", || {
            let opened = scene.fleet.count_logged(OPENED);
            opened.iter().all(|times| *times > 0).then_some(())
        });
        std::thread::sleep(ONSET);
        opened_at = now();
        unconfirmed[0] = scene.fleet.unconfirmed();
        std::thread::sleep(OUTAGE - ONSET);
        unconfirmed[1] = scene.fleet.unconfirmed();
        kind.end(scene);
    });
    scene.report(&format!("outage, {kind:?}"), &played);
    scene.check_guarantees(&played);
    // Once each, or more often if the machine stalled.
    let (opened, closed) = (scene.fleet.count_logged(OPENED), scene.fleet.count_logged(CLOSED));
    assert_eq!(opened, closed, "{kind:?}: breakers opened and closed");

    let (history, per) = (&played.history, scene.window.per);
    let last = history.last_local().unwrap();
    assert_eq!(unconfirmed[0], unconfirmed[1], "{kind:?}: waited for it");
    let inside = (opened_at.plus(per), played.ended);
    let after = (last.plus(per), history.records.last().unwrap().sent);
    for rate in [&scene.window, &scene.bucket] {
        if kind != OutageKind::Killed {
            history.at_most(rate, 100, RequestRecord::exact);
        }
        history.at_least(rate, SHARE * 9 / 10, inside, RequestRecord::local);
        history.at_least(rate, 95, after, RequestRecord::exact);
    }
}

#[test]
fn half_a_minute_without_the_store_fails_no_decision_and_admits_no_more_than_is_stated() {
    let kinds = [OutageKind::Killed, OutageKind::Frozen, OutageKind::BlackHole];
    at_once(&kinds, outage);
}
