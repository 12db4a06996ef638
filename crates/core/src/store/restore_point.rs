//! Up to which moment a store has what a node remembers, after a restart or a failover.
//!
//! Heartbeats are kept in order with all that is written, so one that is found shows that everything older is there. That
//! holds for what a node remembers only if the store had all of it when the heartbeat was left: the epoch is the one that
//! the node knows, and the node had restored what it remembers before.

use super::Epoch;
use crate::units::Nanos;

/// How much later than the last heartbeat of this node one of another node may be. Nodes on a busy machine are seconds late.
/// A larger difference shows that the clock was set back, or that another server has another clock.
const MAX_CLOCK_AHEAD: Nanos = Nanos::from_secs(5);

/// What a store replied to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatReply {
    /// The present life.
    pub epoch: Epoch,
    /// The epoch of the data: another one if something is known to be lost.
    pub data_epoch: u64,
    /// The store's time.
    pub at: Nanos,
    /// The last heartbeat that the server found in its data when it began, by the clock of that time.
    pub last_saved_heartbeat: Nanos,
}

/// What a node knows of the heartbeats of one store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestorePoint {
    epoch: Option<Epoch>,
    data_epoch: u64,
    /// When the store first had all that the node remembers, in this life.
    restored_at: Option<Nanos>,
    last_at: Nanos,
    complete_until: Nanos,
}

impl RestorePoint {
    /// Notes the reply to a heartbeat that says into which life the node has restored what it remembers. Returns the moment
    /// up to which the store has all of it, zero if that is not known.
    pub fn record(&mut self, restored: Option<Epoch>, reply: &HeartbeatReply) -> Nanos {
        if self.epoch != Some(reply.epoch) {
            let was_complete = self
                .restored_at
                .is_some_and(|at| at <= reply.last_saved_heartbeat);
            let is_same_clock = reply.last_saved_heartbeat <= self.last_at.plus(MAX_CLOCK_AHEAD);
            let is_proven = self.data_epoch == reply.data_epoch && was_complete && is_same_clock;
            *self = RestorePoint {
                epoch: Some(reply.epoch),
                data_epoch: reply.data_epoch,
                complete_until: if is_proven {
                    reply.last_saved_heartbeat
                } else {
                    Nanos::ZERO
                },
                ..RestorePoint::default()
            };
        }
        let is_restored = restored == Some(reply.epoch);
        self.restored_at = is_restored.then(|| self.restored_at.unwrap_or(reply.at));
        self.last_at = reply.at;
        self.complete_until
    }

    /// Whether the store has all that the node remembers, by its last heartbeat.
    pub fn is_restored(&self) -> bool {
        self.restored_at.is_some()
    }

    /// The store may lack something that the node remembers, and no heartbeat says so yet.
    pub fn mark_incomplete(&mut self) {
        self.restored_at = None;
    }

    /// That of another server to which the data was moved.
    #[must_use]
    pub fn after_data_moved(&self) -> Self {
        RestorePoint {
            epoch: None,
            ..self.clone()
        }
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

    /// A node that has restored all it remembers in life 1, at second 10.
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
    fn a_heartbeat_of_the_same_epoch_is_proof() {
        check(&restored(), &reply(2, 7, 21, 20), 20);
        check(&restored(), &reply(2, 7, 21, 10), 10);
        let mut point = restored();
        point.record(None, &reply(2, 7, 21, 20));
        check(&point, &reply(2, 7, 22, 20), 20);
    }

    #[test]
    fn one_from_before_the_node_had_restored_is_none() {
        check(&restored(), &reply(2, 7, 21, 9), 0);
        let mut point = RestorePoint::default();
        point.record(None, &reply(1, 7, 9, 3));
        check(&point, &reply(2, 7, 21, 20), 0);
    }

    /// The store lost data, came back, and restarts once more before the node has restored anything.
    #[test]
    fn nor_is_one_of_a_second_restart_amid_a_loss() {
        let mut point = restored();
        assert_eq!(point.record(None, &reply(2, 8, 21, 15)), Nanos::ZERO);
        check(&point, &reply(3, 8, 22, 21), 0);
        point.record(Some(Epoch(2)), &reply(2, 8, 22, 15));
        check(&point, &reply(3, 8, 23, 21), 0);
        check(&point, &reply(3, 8, 23, 22), 22);
    }

    #[test]
    fn nor_is_one_of_an_epoch_that_the_node_has_never_met() {
        check(&restored(), &reply(3, 8, 30, 20), 0);
    }

    #[test]
    fn nor_is_one_of_another_clock() {
        check(&restored(), &reply(2, 7, 21, 26), 0);
        check(&restored(), &reply(2, 7, 21, 25), 25);
    }

    #[test]
    fn nor_is_one_from_before_the_node_had_restored_once_more() {
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
    fn data_that_was_moved_is_as_whole_as_before() {
        check(&restored().after_data_moved(), &reply(5, 7, 21, 20), 20);
        check(
            &RestorePoint::default().after_data_moved(),
            &reply(5, 7, 21, 20),
            0,
        );
    }
}
