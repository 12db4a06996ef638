//! The memory store passes the conformance suite.

mod conformance;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use conformance::Rig;
use tidegate::clock::ManualClock;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::Precision;
use tidegate_core::units::Nanos;

struct MemoryRig {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
}

impl MemoryRig {
    fn new() -> Self {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        MemoryRig { store: MemoryStore::new(clock.clone()), clock }
    }
}

impl Rig for MemoryRig {
    type Store = MemoryStore<ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn advance(&self, span: Nanos) {
        self.clock.advance(span);
    }

    fn precision(&self) -> Precision {
        Precision::Memory
    }
}

/// The memory store never waits, so one poll is enough.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the memory store made its caller wait"),
    }
}

macro_rules! tests {
    (; $($claim:ident)*) => {
        $(#[test]
        fn $claim() {
            at_once(conformance::$claim(&MemoryRig::new()));
        })*
    };
}

every_conformance_test!(tests! {});
