//! How the calls of a store reach its counters.

use std::fmt;
use std::sync::Arc;

use redis::Value;
use tidegate_core::store::{Slot, Unacknowledged};
use tidegate_core::subject::Fingerprint;

use super::cluster::Branch;
use super::durable::{Answered, Need};
use super::fault::Fault;
use super::link::{Call, Errand, Link};
use super::redirect::Entry;

/// One of the ways there are.
#[derive(Clone)]
pub(super) enum Way {
    /// To a server that has everything.
    Straight(Arc<Link>),
    /// To a primary of a cluster, and on to where it sends us.
    Branch(Branch),
}

impl Way {
    /// Runs a script.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Value, Fault> {
        match self {
            Way::Straight(link) => link.send(Errand::Script(call), Entry::Plain).await.0,
            Way::Branch(branch) => branch.call(call).await,
        }
    }

    /// Runs several scripts one after another, in one go.
    pub(super) async fn call_each(&self, calls: &[Call<'_>]) -> Vec<Result<Value, Fault>> {
        match self {
            Way::Straight(link) => link.call_each(calls).await,
            Way::Branch(branch) => branch.call_each(calls).await,
        }
    }

    /// The same, and waits until they are as safe as `need` says.
    ///
    /// # Errors
    /// When nothing was sent, because what was sent before is not safe yet.
    pub(super) async fn call_safely(&self, calls: &[Call<'_>], need: Need) -> Answered {
        match self {
            Way::Straight(link) => link.call_safely(calls, need, Entry::Plain).await,
            Way::Branch(branch) => branch.call_safely(calls, need).await,
        }
    }

    /// Waits until the server can be asked; a part of a cluster that is none any more never can.
    pub(super) async fn ready(&self) {
        match self {
            Way::Straight(link) => link.ready().await,
            Way::Branch(branch) => branch.ready().await,
        }
    }

    /// Why there is no connection, if there is none.
    pub(super) fn last_fault(&self) -> Option<Fault> {
        match self {
            Way::Straight(link) => link.last_fault(),
            Way::Branch(branch) => branch.cluster.seat(branch.part)?.link.last_fault(),
        }
    }

    /// Why durable charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<Unacknowledged> {
        match self {
            Way::Straight(link) => link.safe.why(),
            Way::Branch(branch) => branch.cluster.seat(branch.part)?.link.safe.why(),
        }
    }

    /// The run of the server that is connected.
    pub(super) fn run(&self) -> Option<u64> {
        match self {
            Way::Straight(link) => link.run(),
            Way::Branch(branch) => branch.cluster.seat(branch.part)?.link.run(),
        }
    }

    /// The slot of a subject's counters, if this way leads to them.
    pub(super) fn slot(&self, subject: Fingerprint) -> Option<Slot> {
        match self {
            Way::Straight(_) => Some(Slot(0)),
            Way::Branch(branch) => branch.slot(subject),
        }
    }
}

/// Never prints an address or a password.
impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Straight(link) => link.fmt(f),
            Way::Branch(branch) => branch.part.fmt(f),
        }
    }
}
