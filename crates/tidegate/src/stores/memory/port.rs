//! The store trait, filled. Every verb is decided when it is first polled and never waits.

use std::future::Future;

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Outcome, Refund, Refunded, Seed, Store,
    StoreError,
};

use super::MemoryStore;
use super::several::Intent;
use crate::clock::Clock;

type Answer<T> = Result<T, StoreError>;
