//! Short faults under load: none fails a decision, exceeds a bound or loses a charge.

use std::time::Duration;

use tidegate_testkit::ProxyFault;

use crate::fleet::BUDGET;
use crate::scene::{FaultScenario, ScenarioResult, at_once};
use crate::server::DEADLINE;

const CALM: Duration = Duration::from_secs(3);

fn wait(secs: u64) {
    std::thread::sleep(Duration::from_secs(secs));
}

fn play(name: &str, options: &[&str], fault: impl FnOnce(&mut FaultScenario)) {
    play_in(FaultScenario::with(options, BUDGET), name, fault);
}

fn play_in(mut scene: FaultScenario, name: &str, fault: impl FnOnce(&mut FaultScenario)) -> ScenarioResult {
    let played = scene.run(CALM, fault);
    scene.report(name, &played);
    scene.check_guarantees(&played);
    played
}

/// Delays of a fifth of the store budget, all of it, four times and twenty times it: nodes wait, or stop using the
/// store. That they do not alternate is tested where the clock is injected
/// (`silence_soon_after_silence_needs_good_pings`): on a busy machine a node itself may stall for a second, which
/// is silence as well.
#[test]
fn nodes_wait_for_a_slow_store_or_stop_using_it() {
    let budget = BUDGET.duration();
    at_once(&[budget / 5, budget, 4 * budget, 20 * budget], |late| {
        let mut scene = FaultScenario::new();
        let played = scene.run(CALM, |scene| {
            scene.line.set(ProxyFault::Delay(late));
            wait(10);
            scene.line.set(ProxyFault::None);
        });
        scene.report(&format!("replies {late:?} late"), &played);
        scene.check_guarantees(&played);
    });
}

#[test]
fn a_store_that_pauses_comes_back_by_itself() {
    let debug = ["--enable-debug-command", "yes"];
    let pauses: [&[&str]; 3] =
        [&["DEBUG", "SLEEP", "3"], &["CLIENT", "PAUSE", "3000", "ALL"], &["CLIENT", "PAUSE", "3000", "WRITE"]];
    at_once(&pauses, |pause| {
        play(&pause.join(" "), &debug, |scene| {
            assert_eq!(scene.store.run_command(pause), "OK");
            if pause[0] == "CLIENT" {
                wait(3);
            }
        });
    });
}

/// A charge whose reply is lost is charged once more, because the store may not have counted it. The nodes count
/// such charges, and no more than those are counted twice.
#[test]
fn a_lost_or_corrupt_reply_adds_no_more_than_one_charge() {
    at_once(&[ProxyFault::Reset, ProxyFault::CutReply, ProxyFault::Corrupt], |fault| {
        play(&format!("{fault:?}"), &[], |scene| {
            for _ in 0..2 {
                scene.lose_replies(fault, Duration::from_millis(50));
                wait(2);
            }
        });
    });
}

/// A store that rejects charges.
#[derive(Clone, Copy, Debug)]
enum StoreRejection {
    /// Full, and nothing may be evicted.
    OutOfMemory,
    /// A replica, as after a failover.
    ReadOnly,
    /// Loading its data after a crash: neither ready nor empty.
    Loading,
}

#[test]
fn nodes_decide_without_a_store_that_rejects_charges() {
    let rejections = [StoreRejection::OutOfMemory, StoreRejection::ReadOnly, StoreRejection::Loading];
    // Slow to load, and able to reply meanwhile.
    let loading = [
        ["--enable-debug-command", "yes"],
        ["--key-load-delay", "200"],
        ["--loading-process-events-interval-bytes", "1024"],
    ];
    at_once(&rejections, |rejection| {
        play(&format!("{rejection:?}"), loading.as_flattened(), |scene| {
            let store = &mut scene.store;
            match rejection {
                StoreRejection::OutOfMemory => {
                    store.run_command(&["CONFIG", "SET", "maxmemory", "1"]);
                    wait(3);
                    store.run_command(&["CONFIG", "SET", "maxmemory", "0"]);
                }
                StoreRejection::ReadOnly => {
                    store.run_command(&["REPLICAOF", "127.0.0.1", "1"]);
                    wait(3);
                    store.run_command(&["REPLICAOF", "NO", "ONE"]);
                }
                StoreRejection::Loading => {
                    store.run_command(&["DEBUG", "POPULATE", "10000"]);
                    assert_eq!(store.run_command(&["SAVE"]), "OK");
                    wait(1);
                    store.kill();
                    store.restart();
                    assert!(store.run_command(&["PING"]).starts_with("LOADING"));
                    wait(3);
                }
            }
        });
    });
}

/// The store always replies, so nodes may wait as long as this machine takes.
#[test]
fn missing_scripts_are_loaded_again_without_a_failed_decision() {
    let scene = FaultScenario::with(&[], DEADLINE.into());
    let played = play_in(scene, "SCRIPT FLUSH", |scene| {
        for _ in 0..20 {
            assert_eq!(scene.store.run_command(&["SCRIPT", "FLUSH"]), "OK");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(played.history.last_local(), None);
}
