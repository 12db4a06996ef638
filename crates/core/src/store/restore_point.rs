//! The moment up to which a store has the counts that a node remembers, after a restart or a failover.
//!
//! The store orders heartbeats with all other writes, so a heartbeat that survives proves that every older write
//! survived. For the counts of a node this holds only if the store had all of them at the time of the heartbeat: the
//! data epoch is the one that the node knows, and the node had restored its counts before.

use super::Epoch;
use crate::units::Nanos;

/// How far a heartbeat of another node may be ahead of the last heartbeat of this node. Nodes on a busy machine are
/// seconds late. A larger difference shows that the clock was set back, or that another server has another clock.
const MAX_CLOCK_AHEAD: Nanos = Nanos::from_secs(5);

/// The reply of a store to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatReply {
    /// The present epoch.
    pub epoch: Epoch,
    /// The epoch of the data: a different one if data is known to be lost.
    pub data_epoch: u64,
    /// The store's time.
    pub at: Nanos,
    /// The last heartbeat that the server found in its data at its start, by the clock of that time.
    pub last_saved_heartbeat: Nanos,
}

/// The heartbeats of one store, as a node knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestorePoint {
    epoch: Option<Epoch>,
    data_epoch: u64,
    /// When the store first had all counts of the node, in this epoch.
    restored_at: Option<Nanos>,
    last_at: Nanos,
    complete_until: Nanos,
}

impl RestorePoint {
    /// Records the reply to a heartbeat. `restored` is the epoch into which the node has restored its counts. Returns
    /// the moment up to which the store has all of them, zero if unknown.
    pub fn record(&mut self, restored: Option<Epoch>, reply: &HeartbeatReply) -> Nanos {
        if self.epoch != Some(reply.epoch) {
            let was_complete = self.restored_at.is_some_and(|at| at <= reply.last_saved_heartbeat);
            let is_same_clock = reply.last_saved_heartbeat <= self.last_at.plus(MAX_CLOCK_AHEAD);
            let is_proven = self.data_epoch == reply.data_epoch && was_complete && is_same_clock;
            *self = RestorePoint {
                epoch: Some(reply.epoch),
                data_epoch: reply.data_epoch,
                complete_until: if is_proven { reply.last_saved_heartbeat } else { Nanos::ZERO },
                ..RestorePoint::default()
            };
        }
        let is_restored = restored == Some(reply.epoch);
        self.restored_at = is_restored.then(|| self.restored_at.unwrap_or(reply.at));
        self.last_at = reply.at;
        self.complete_until
    }

    /// Whether the store has all counts of the node, as of its last heartbeat.
    pub fn is_restored(&self) -> bool {
        self.restored_at.is_some()
    }

    /// Marks that the store may lack counts of the node, before any heartbeat reports it.
    pub fn mark_incomplete(&mut self) {
        self.restored_at = None;
    }

    /// The restore point of another server to which the data was moved.
    #[must_use]
    pub fn after_data_moved(&self) -> Self {
        RestorePoint { epoch: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(epoch: u64, data_epoch: u64, at: u64, last_saved_heartbeat: u64) -> HeartbeatReply {
        HeartbeatReply {
            epoch: Epoch(epoch),
            data_epoch,
            at: Nanos::from_secs(at),
            last_saved_heartbeat: Nanos::from_secs(last_saved_heartbeat),
        }
    }

    /// A node that has restored all its counts in epoch 1, at second 10.
    fn restored() -> RestorePoint {
        let mut point = RestorePoint::default();
        assert_eq!(point.record(None, &reply(1, 7, 9, 3)), Nanos::ZERO);
        point.record(Some(Epoch(1)), &reply(1, 7, 10, 3));
        point.record(Some(Epoch(1)), &reply(1, 7, 20, 3));
        point
    }

    #[track_caller]
    fn check(point: &RestorePoint, reply: &HeartbeatReply, complete_until: u64) {
        let expected = Nanos::from_secs(complete_until);
        assert_eq!(point.clone().record(None, reply), expected, "{reply:?}");
    }

    #[test]
    fn a_heartbeat_of_the_same_data_epoch_is_proof() {
        check(&restored(), &reply(2, 7, 21, 20), 20);
        check(&restored(), &reply(2, 7, 21, 10), 10);
        let mut point = restored();
        point.record(None, &reply(2, 7, 21, 20));
        check(&point, &reply(2, 7, 22, 20), 20);
    }

    #[test]
    fn a_heartbeat_before_the_restore_is_no_proof() {
        check(&restored(), &reply(2, 7, 21, 9), 0);
        let mut point = RestorePoint::default();
        point.record(None, &reply(1, 7, 9, 3));
        check(&point, &reply(2, 7, 21, 20), 0);
    }

    /// The store lost data, recovered, and restarts once more before the node has restored anything.
    #[test]
    fn a_heartbeat_of_a_second_restart_during_a_loss_is_no_proof() {
        let mut point = restored();
        assert_eq!(point.record(None, &reply(2, 8, 21, 15)), Nanos::ZERO);
        check(&point, &reply(3, 8, 22, 21), 0);
        point.record(Some(Epoch(2)), &reply(2, 8, 22, 15));
        check(&point, &reply(3, 8, 23, 21), 0);
        check(&point, &reply(3, 8, 23, 22), 22);
    }

    #[test]
    fn a_heartbeat_of_an_unknown_data_epoch_is_no_proof() {
        check(&restored(), &reply(3, 8, 30, 20), 0);
    }

    #[test]
    fn a_heartbeat_of_another_clock_is_no_proof() {
        check(&restored(), &reply(2, 7, 21, 26), 0);
        check(&restored(), &reply(2, 7, 21, 25), 25);
    }

    #[test]
    fn a_heartbeat_before_the_second_restore_is_no_proof() {
        let mut point = restored();
        point.record(None, &reply(1, 7, 30, 3));
        assert!(!point.is_restored());
        point.record(Some(Epoch(1)), &reply(1, 7, 31, 3));
        assert!(point.is_restored());
        check(&point, &reply(2, 7, 32, 30), 0);
        check(&point, &reply(2, 7, 32, 31), 31);
        point.mark_incomplete();
        assert!(!point.is_restored());
        check(&point, &reply(2, 7, 32, 31), 0);
    }

    #[test]
    fn moved_data_is_as_complete_as_before() {
        check(&restored().after_data_moved(), &reply(5, 7, 21, 20), 20);
        check(&RestorePoint::default().after_data_moved(), &reply(5, 7, 21, 20), 0);
    }
}
