//! Runs the conformance tests of stores against real servers.
//!
//! The scripts are the shipped ones with one change: they read the time from a key, so that tests can advance it.

#[path = "../../../tests/conformance/mod.rs"]
pub(super) mod conformance;

use std::sync::Mutex;

use redis::Commands;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::store::{Counters, Store};
use tidegate_core::units::Nanos;

use self::conformance::Rig;
use super::scripts::LoadedScript;
use super::{Redis, RedisConfig, RedisStore, scripts};
use tidegate_testkit::{RedisProgram, TestRedis};

/// Far enough ahead that nothing expires by the server's own clock.
pub(super) const START: u64 = 2_300_000_000;

/// A store whose time is in the server, under a key of the test.
pub(super) struct ConformanceRig {
    store: RedisStore,
    direct: Mutex<redis::Connection>,
}

impl ConformanceRig {
    pub(super) async fn connect(server: &TestRedis) -> ConformanceRig {
        let client = redis::Client::open(server.url()).expect("an address");
        let mut direct = client.get_connection().expect("a server");
        let () = direct.set("now", START).expect("a server");
        let clock = "{ redis.call('GET', 'now'), '0' }";
        let loaded =
            scripts::ALL.map(|script| LoadedScript::new(script, script.text.replace("redis.call('TIME')", clock)));
        let redis = Redis::open_with_scripts(&RedisConfig::new(&server.url()), loaded);
        let store = redis.expect("an address").into_single_store().expect("one server");
        store.ready().await;
        ConformanceRig { store, direct: Mutex::new(direct) }
    }
}

impl ConformanceRig {
    /// The time of the store.
    pub(super) fn time(&self) -> Nanos {
        let mut direct = self.direct.lock().expect("one thread");
        Nanos::from_secs(direct.get("now").expect("a server"))
    }
}

impl Rig for ConformanceRig {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn advance(&self, span: Nanos) {
        let mut direct = self.direct.lock().expect("one thread");
        let secs = span.get() / 1_000_000_000;
        let _: i64 = direct.incr("now", secs).expect("a server");
    }

    fn precision(&self) -> Precision {
        Precision::Double
    }
}

macro_rules! run_conformance_tests {
    ($rig:expr; $($claim:ident)*) => {
        $(conformance::$claim($rig).await;)*
    };
}

fn run_all_conformance_tests(program: RedisProgram) {
    let server = TestRedis::start(program, &[]);
    on_runtime(async {
        let rig = ConformanceRig::connect(&server).await;
        crate::every_conformance_test!(run_conformance_tests! { &rig });
    });
}

/// A store that does not know the server's time yet sends windows long past. The script does nothing and replies with
/// its time, and the store calls it again.
#[test]
fn calendar_windows_are_found_at_any_time() {
    let server = TestRedis::redis7();
    let day = |number: u64| Nanos::from_secs(START - 1_000_000 + 86_400 * number);
    let mut spec = Spec::new(Algorithm::FixedWindow, 2, Nanos::from_secs(86_400));
    spec.window = Window::Edges { edges: (0..400).map(day).collect(), nominal: Nanos::from_secs(86_400) };
    let limit = Limit::compile(&spec, Precision::Double).expect("a limit");
    on_runtime(async {
        let rig = ConformanceRig::connect(&server).await;
        let counter = conformance::ConformanceCounter::new();
        let charge = async |cost| {
            let one = conformance::set([counter.enforce(&limit, cost)]);
            rig.store().charge(&one).await.expect("a reply").admitted
        };
        assert!(charge(1).await && charge(1).await && !charge(1).await);
        rig.advance(Nanos::from_secs(40 * 86_400));
        assert!(charge(2).await && !charge(1).await, "a later day");
        rig.advance(Nanos::from_secs(500 * 86_400));
        let batch = conformance::set([counter.enforce(&limit, 1)]);
        let admitted = rig.store().charge_each(&[&batch, &batch, &batch]).await;
        let admitted = admitted.into_iter().map(|o| o.expect("a reply").admitted);
        assert_eq!(admitted.collect::<Vec<_>>(), [true, true, false], "the last day never ends");
        rig.advance(Nanos::from_secs(500 * 86_400));
        assert!(!charge(1).await);
    });
}

pub(super) fn on_runtime<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

#[test]
fn redis_7_passes_every_conformance_test() {
    run_all_conformance_tests(RedisProgram::Redis7);
}

#[test]
fn redis_8_passes_every_conformance_test() {
    run_all_conformance_tests(RedisProgram::Redis8);
}

#[test]
fn valkey_8_passes_every_conformance_test() {
    run_all_conformance_tests(RedisProgram::Valkey8);
}

#[test]
fn valkey_9_passes_every_conformance_test() {
    run_all_conformance_tests(RedisProgram::Valkey9);
}
