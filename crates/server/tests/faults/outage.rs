//! Half a minute without the store, in each way a store can be away, under steady load.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_parts::Fault;

use crate::fleet::{BUDGET, CLOSED, OPENED};
use crate::history::{History, Record};
use crate::rates::SHARE;
use crate::scene::{Scene, at_once};

const OUTAGE: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(6);
/// From the first failure to the last node that has given up, and what was under way.
const ONSET: Nanos = Nanos::from_secs(2);
/// The store is asked every 200 ms and is to answer three times; the rest is for this machine.
const RECOVERY: Nanos = Nanos::from_secs(5);

/// A way to be away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// And started again with nothing.
    Killed,
    Frozen,
    Slow,
    BlackHole,
}

impl Kind {
    fn begin(self, scene: &mut Scene) {
        match self {
            Kind::Killed => scene.store.kill(),
            Kind::Frozen => scene.store.freeze(),
            Kind::Slow => scene.line.set(Fault::Delay(Duration::from_millis(500))),
            Kind::BlackHole => scene.line.set(Fault::BlackHole),
        }
    }

    fn end(self, scene: &mut Scene) {
        match self {
            Kind::Killed => scene.store.restart(),
            Kind::Frozen => scene.store.thaw(),
            Kind::Slow | Kind::BlackHole => scene.line.set(Fault::None),
        }
    }
}

/// Once a node has given up, nobody waits for the store any more. One in a hundred may be this machine.
#[track_caller]
fn nobody_waited(history: &History, from: Nanos, to: Nanos) {
    let inside = || {
        history
            .records
            .iter()
            .filter(|r| from <= r.sent && r.heard <= to)
    };
    let waited = inside().filter(|r| r.took() >= BUDGET).count();
    assert!(waited * 100 <= inside().count(), "{waited} waited");
}

fn outage(kind: Kind) {
    let mut scene = Scene::new();
    let played = scene.play(CALM, |scene| {
        kind.begin(scene);
        std::thread::sleep(OUTAGE);
        kind.end(scene);
    });
    scene.report(&format!("outage, {kind:?}"), &played);
    scene.kept_its_promises(&played);
    assert_eq!(scene.fleet.said(OPENED), [1; 4], "{kind:?}: given up");
    assert_eq!(scene.fleet.said(CLOSED), [1; 4], "{kind:?}: taken up again");

    let (history, per) = (&played.history, scene.window.per);
    let last = history.last_local().unwrap();
    let recovery = last.since(played.ended);
    assert!(
        recovery < RECOVERY,
        "{kind:?}: {recovery} to be exact again"
    );
    let given_up = played.began.plus(ONSET);
    nobody_waited(history, given_up, played.ended);
    let inside = (given_up.plus(per), played.ended);
    let after = (last.plus(per), history.records.last().unwrap().sent);
    for rate in [&scene.window, &scene.bucket] {
        if kind != Kind::Killed {
            history.at_most(rate, 100, Record::exact);
        }
        history.at_least(rate, SHARE * 9 / 10, inside, Record::local);
        history.at_least(rate, 95, after, Record::exact);
    }
}

#[test]
fn half_a_minute_without_the_store_costs_no_decision_and_admits_no_more_than_is_stated() {
    let kinds = [Kind::Killed, Kind::Frozen, Kind::Slow, Kind::BlackHole];
    at_once(&kinds, outage);
}
