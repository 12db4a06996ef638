//! The memory store keeps what every store promises.

mod conformance;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use conformance::Rig;
use tidegate::clock::ManualClock;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::Precision;
use tidegate_core::units::Nanos;

struct Memory {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
}

impl Memory {
    fn new() -> Self {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        Memory {
            store: MemoryStore::new(clock.clone()),
            clock,
        }
    }
}

impl Rig for Memory {
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
            at_once(conformance::$claim(&Memory::new()));
        })*
    };
}

every_claim!(tests! {});
