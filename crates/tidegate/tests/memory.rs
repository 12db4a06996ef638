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

conformance! {
    Memory::new(), at_once;
    each_algorithm_admits_its_limit_and_no_more
    a_reading_stands_after_the_charge_or_as_found
    a_refusal_by_the_last_limit_leaves_the_others_as_they_were
    a_shadow_never_refuses_and_is_charged_only_with_the_request
    quotas_refuse_only_when_none_has_room
    a_counter_named_twice_is_charged_twice
    a_peek_answers_like_a_charge_and_spends_nothing
    a_cost_above_the_capacity_fits_never
    a_batch_is_decided_in_order
    a_refund_gives_back_once
    a_refund_is_capped_by_what_has_not_drained
    a_grant_takes_what_there_is
    a_forced_charge_is_a_debt
    a_seed_raises_a_counter_and_never_lowers_it
    slots_are_held_renewed_released_and_expire
    inspection_shows_use_and_reset_forgets_it
    a_changed_limit_keeps_what_was_used
    debt_under_a_smaller_limit_is_twice_that_limit
}
