//! Up to which moment a store has what a node remembers, after a restart or a failover.
//!
//! Heartbeats are kept in order with all that is written, so one that is found shows that everything older is there. That
//! holds for what a node remembers only if the store had all of it when the heartbeat was left: the epoch is the one that
//! the node knows, and the node had restored what it remembers before.

use super::Life;
use crate::units::Nanos;

/// How much later than the last heartbeat of this node one of another node may be. Nodes on a busy machine are seconds late.
/// A larger difference shows that the clock was set back, or that another server has another clock.
const MAX_AHEAD: Nanos = Nanos::from_secs(5);

/// What a store replied to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatReply {
    /// The present life.
    pub life: Life,
    /// The epoch of the data: another one if something is known to be lost.
    pub epoch: u64,
    /// The store's time.
    pub at: Nanos,
    /// The last heartbeat that the server found in its data when it began, by the clock of that time.
    pub found: Nanos,
}

/// What a node knows of the heartbeats of one store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestorePoint {
    life: Option<Life>,
    epoch: u64,
    /// When the store first had all that the node remembers, in this life.
    restored_at: Option<Nanos>,
    last_at: Nanos,
    whole_until: Nanos,
}

impl RestorePoint {
    /// Notes the reply to a heartbeat that says into which life the node has restored what it remembers. Returns the moment
    /// up to which the store has all of it, zero if that is not known.
    pub fn note(&mut self, restored: Option<Life>, reply: &HeartbeatReply) -> Nanos {
        if self.life != Some(reply.life) {
            let was_whole = self.restored_at.is_some_and(|at| at <= reply.found);
            let is_same_clock = reply.found <= self.last_at.plus(MAX_AHEAD);
            let is_proof = self.epoch == reply.epoch && was_whole && is_same_clock;
            *self = RestorePoint {
                life: Some(reply.life),
                epoch: reply.epoch,
                whole_until: if is_proof { reply.found } else { Nanos::ZERO },
                ..RestorePoint::default()
            };
        }
        let is_restored = restored == Some(reply.life);
        self.restored_at = is_restored.then(|| self.restored_at.unwrap_or(reply.at));
        self.last_at = reply.at;
        self.whole_until
    }

    /// Whether the store has all that the node remembers, by its last heartbeat.
    pub fn is_restored(&self) -> bool {
        self.restored_at.is_some()
    }

    /// The store may lack something that the node remembers, and no heartbeat says so yet.
    pub fn may_lack_counts(&mut self) {
        self.restored_at = None;
    }

    /// That of another server to which the data was moved.
    #[must_use]
    pub fn of_moved_data(&self) -> Self {
        RestorePoint {
            life: None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(life: u64, epoch: u64, at: u64, found: u64) -> HeartbeatReply {
        HeartbeatReply {
            life: Life(life),
            epoch,
            at: Nanos::from_secs(at),
            found: Nanos::from_secs(found),
        }
    }

    /// A node that has restored all it remembers in life 1, at second 10.
    fn restored() -> RestorePoint {
        let mut point = RestorePoint::default();
        assert_eq!(point.note(None, &reply(1, 7, 9, 3)), Nanos::ZERO);
        point.note(Some(Life(1)), &reply(1, 7, 10, 3));
        point.note(Some(Life(1)), &reply(1, 7, 20, 3));
        point
    }

    #[track_caller]
    fn check(point: &RestorePoint, reply: &HeartbeatReply, whole_until: u64) {
        let expected = Nanos::from_secs(whole_until);
        assert_eq!(point.clone().note(None, reply), expected, "{reply:?}");
    }

    #[test]
    fn a_heartbeat_of_the_same_epoch_is_proof() {
        check(&restored(), &reply(2, 7, 21, 20), 20);
        check(&restored(), &reply(2, 7, 21, 10), 10);
        let mut point = restored();
        point.note(None, &reply(2, 7, 21, 20));
        check(&point, &reply(2, 7, 22, 20), 20);
    }

    #[test]
    fn one_from_before_the_node_had_restored_is_none() {
        check(&restored(), &reply(2, 7, 21, 9), 0);
        let mut point = RestorePoint::default();
        point.note(None, &reply(1, 7, 9, 3));
        check(&point, &reply(2, 7, 21, 20), 0);
    }

    /// The store lost data, came back, and restarts once more before the node has restored anything.
    #[test]
    fn nor_is_one_of_a_second_restart_amid_a_loss() {
        let mut point = restored();
        assert_eq!(point.note(None, &reply(2, 8, 21, 15)), Nanos::ZERO);
        check(&point, &reply(3, 8, 22, 21), 0);
        point.note(Some(Life(2)), &reply(2, 8, 22, 15));
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
        point.note(None, &reply(1, 7, 30, 3));
        assert!(!point.is_restored());
        point.note(Some(Life(1)), &reply(1, 7, 31, 3));
        assert!(point.is_restored());
        check(&point, &reply(2, 7, 32, 30), 0);
        check(&point, &reply(2, 7, 32, 31), 31);
        point.may_lack_counts();
        assert!(!point.is_restored());
        check(&point, &reply(2, 7, 32, 31), 0);
    }

    #[test]
    fn data_that_was_moved_is_as_whole_as_before() {
        check(&restored().of_moved_data(), &reply(5, 7, 21, 20), 20);
        check(
            &RestorePoint::default().of_moved_data(),
            &reply(5, 7, 21, 20),
            0,
        );
    }
}
