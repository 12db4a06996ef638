//! Decides whether this node may trust the store, and tracks the nodes that share it.
//!
//! Phases: `Unknown` (no status yet), `Exact` (trusted), `Recovering` (counts are missing, the nodes restore them).
//! Events: `on_status` (the reply to a ping), `mark_lost`, `mark_epoch_ended`, `mark_counts_missing`,
//! `mark_slots_missing`, `mark_restored`, `mark_reachable`, `mark_unreachable`. Effects: a [`RecoveryStep`] per status; the heartbeat of
//! this node; the [`Membership`] for decisions.
//!
//! The first status, a new epoch and a loss lead to `Recovering`. `Recovering` leads to `Exact` when this node has
//! restored its counts into the present epoch, and every other member has too or `recovery_timeout` has passed. Pure:
//! status and time go in. Knows no mirror.

use std::collections::BTreeSet;

use tidegate_core::store::{Epoch, HashSlot, Heartbeat, NodeId, StoreStatus};
use tidegate_core::units::Nanos;

use crate::shard::recovery::membership::Membership;
use crate::shard::settings::{DEFAULT_NODES, ResilienceSettings};

/// How long a node may be missing from the list before it no longer counts.
const MEMBER_TIMEOUT: Nanos = Nanos::from_secs(5);

/// How long it may take until every live node is listed: a few pings.
const MEMBERSHIP_FILL_TIME: Nanos = Nanos::from_secs(1);

/// What a node knows about its store and its peers.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryState {
    me: NodeId,
    phase: RecoveryPhase,
    epoch: Option<Epoch>,
    restored: Option<Epoch>,
    /// A reply showed that `epoch` ended, and no counts were missing in it.
    epoch_ended: bool,
    missing_counts: MissingCounts,
    /// How often counts may have gone missing without a new epoch.
    loss_count: u64,
    /// The nodes as last listed, and since when each has been missing.
    members: Vec<(NodeId, Option<Nanos>)>,
    membership_state: MembershipState,
    nodes: Option<u32>,
    share_percent: u32,
    recovery_timeout: Nanos,
}

/// The counts that the store may lack of those that a node has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MissingCounts {
    /// All counts seen since then, by the store's clock.
    since: Nanos,
    /// All counts ever seen in these hash slots.
    hash_slots: BTreeSet<HashSlot>,
}

impl MissingCounts {
    /// All counts seen since `since`, by the store's clock.
    pub(crate) fn since(since: Nanos) -> Self {
        MissingCounts { since, hash_slots: BTreeSet::new() }
    }

    /// Whether it includes a count of a hash slot that was last seen at `at`.
    pub(crate) fn includes(&self, hash_slot: HashSlot, at: Nanos) -> bool {
        at >= self.since || self.hash_slots.contains(&hash_slot)
    }
}

/// Whether the list of nodes can be complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MembershipState {
    /// No: there was no status.
    Unknown,
    /// There is a status since then: other nodes may be about to be listed.
    Filling { since: Nanos },
    /// Every live node has had time to be listed.
    Complete,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecoveryPhase {
    /// There was no status of the store yet.
    Unknown,
    /// The store is trusted.
    Exact,
    /// The store lost counts; the nodes are restoring theirs.
    Recovering { since: Nanos },
}

/// What to do after a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryStep {
    /// Nothing: the store is trusted.
    Nothing,
    /// Restore this node's counts.
    Restore,
    /// Wait for other nodes to restore theirs.
    Wait,
    /// The store is trusted again. `missing` nodes have not restored their counts in time.
    Trust { missing: usize },
}

impl RecoveryState {
    pub(crate) fn new(me: NodeId, settings: &ResilienceSettings) -> Self {
        RecoveryState {
            me,
            phase: RecoveryPhase::Unknown,
            epoch: None,
            restored: None,
            epoch_ended: false,
            missing_counts: MissingCounts { since: Nanos::MAX, hash_slots: BTreeSet::new() },
            loss_count: 0,
            members: settings.members.iter().map(|node| (*node, None)).collect(),
            membership_state: if settings.members.is_empty() {
                MembershipState::Unknown
            } else {
                MembershipState::Complete
            },
            nodes: settings.nodes,
            share_percent: settings.share_percent,
            recovery_timeout: settings.recovery_timeout,
        }
    }

    /// The store's epoch, as last known.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.phase == RecoveryPhase::Exact
    }

    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.phase, RecoveryPhase::Recovering { .. })
    }

    /// The counts to restore.
    pub(crate) fn missing_counts(&self) -> &MissingCounts {
        &self.missing_counts
    }

    /// The counts to restore once `status` is applied. The `complete_until` of a new epoch applies only if this node
    /// had restored its counts into the epoch before.
    pub(crate) fn missing_counts_after(&self, status: &StoreStatus) -> MissingCounts {
        let mut missing_counts = self.missing_counts.clone();
        match self.epoch {
            Some(epoch) if epoch == status.epoch => {}
            Some(epoch) if self.restored != Some(epoch) && !self.epoch_ended => missing_counts.since = Nanos::ZERO,
            Some(_) => missing_counts.since = status.complete_until,
            None => missing_counts.since = missing_counts.since.min(status.complete_until),
        }
        missing_counts
    }

    /// How often counts may have gone missing without a new epoch.
    pub(crate) fn loss_count(&self) -> u64 {
        self.loss_count
    }

    /// The heartbeat for the next ping.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat { node: self.me, restored: self.restored }
    }

    /// The store has lost counts. True if it was trusted.
    pub(crate) fn mark_lost(&mut self, now: Nanos) -> bool {
        self.is_exact() && self.mark_counts_missing(now)
    }

    /// A reply came from another epoch. Its status, which comes next, has until when its counts are complete. True if the
    /// store was trusted.
    pub(crate) fn mark_epoch_ended(&mut self, now: Nanos) -> bool {
        self.epoch_ended |= self.is_exact();
        self.is_exact() && self.restart_recovery(now)
    }

    /// The store may lack counts that it should have, whatever was restored so far. True if it was trusted.
    pub(crate) fn mark_counts_missing(&mut self, now: Nanos) -> bool {
        self.missing_counts.since = Nanos::ZERO;
        self.epoch_ended = false;
        self.restart_recovery(now)
    }

    /// Does the same for some hash slots, which have moved to the store.
    pub(crate) fn mark_slots_missing(&mut self, hash_slots: Vec<HashSlot>, now: Nanos) -> bool {
        if self.is_exact() {
            self.missing_counts.since = Nanos::MAX;
        }
        self.missing_counts.hash_slots.extend(hash_slots);
        self.restart_recovery(now)
    }

    fn restart_recovery(&mut self, now: Nanos) -> bool {
        let was_exact = self.is_exact();
        if was_exact {
            self.phase = RecoveryPhase::Recovering { since: now };
        }
        self.restored = None;
        self.loss_count += 1;
        was_exact
    }

    /// The store is reachable again: the time that other nodes have to restore their counts starts now.
    pub(crate) fn mark_reachable(&mut self, now: Nanos) {
        if let RecoveryPhase::Recovering { since } = &mut self.phase {
            *since = now;
        }
    }

    /// The store did not reply: which nodes are missing from its list is unknown.
    pub(crate) fn mark_unreachable(&mut self) {
        for (_, missing) in &mut self.members {
            *missing = None;
        }
        if self.membership_state != MembershipState::Complete {
            self.membership_state = MembershipState::Unknown;
        }
    }

    /// Applies a status of the store. `has_any_to_restore` returns whether this node knows counts that should be in it,
    /// and is called at the first status only.
    pub(crate) fn on_status(
        &mut self,
        status: &StoreStatus,
        now: Nanos,
        has_any_to_restore: impl FnOnce() -> bool,
    ) -> RecoveryStep {
        self.missing_counts = self.missing_counts_after(status);
        match self.epoch {
            Some(known) if known == status.epoch => {}
            Some(_) => {
                self.phase = RecoveryPhase::Recovering { since: now };
                (self.restored, self.epoch_ended) = (None, false);
            }
            // A node that has just started has nothing to restore, but other nodes may. A store that takes over from
            // another may lack the last charges.
            None => {
                self.phase = RecoveryPhase::Recovering { since: now };
                self.restored = (!has_any_to_restore()).then_some(status.epoch);
            }
        }
        self.epoch = Some(status.epoch);
        self.membership_state = match self.membership_state {
            MembershipState::Unknown => MembershipState::Filling { since: now },
            MembershipState::Filling { since } if now.since(since) >= MEMBERSHIP_FILL_TIME => MembershipState::Complete,
            same => same,
        };
        let RecoveryPhase::Recovering { since } = self.phase else {
            self.update_members(status, now);
            return RecoveryStep::Nothing;
        };
        if self.restored != self.epoch {
            return RecoveryStep::Restore;
        }
        let missing = self.missing(status);
        if missing > 0 && now.since(since) < self.recovery_timeout {
            return RecoveryStep::Wait;
        }
        self.phase = RecoveryPhase::Exact;
        self.update_members(status, now);
        RecoveryStep::Trust { missing }
    }

    /// This node has restored its counts into `epoch`. Ignored if more counts went missing since `loss_count` was read.
    pub(crate) fn mark_restored(&mut self, epoch: Epoch, loss_count: u64) {
        if loss_count == self.loss_count {
            (self.restored, self.epoch_ended) = (Some(epoch), false);
            self.missing_counts.hash_slots.clear();
        }
    }

    /// How many other nodes have not restored their counts.
    fn missing(&self, status: &StoreStatus) -> usize {
        let unrestored = |node: &NodeId| {
            let mut heartbeats = status.heartbeats.iter();
            !heartbeats.any(|heartbeat| heartbeat.node == *node && heartbeat.restored == Some(status.epoch))
        };
        let listed = || status.heartbeats.iter().map(|heartbeat| heartbeat.node);
        let others = |node: &NodeId| *node != self.me;
        if self.members.is_empty() {
            return listed().filter(others).filter(unrestored).count();
        }
        let members = self.members.iter().map(|(node, _)| node);
        members.filter(|node| others(node) && unrestored(node)).count()
    }

    /// Updates the members. A node that is not listed stays for a while: after an outage the list is empty and fills as
    /// nodes come back, and a node that trusted the short list would use the shares of all the others.
    fn update_members(&mut self, status: &StoreStatus, now: Nanos) {
        let listed = |node: NodeId| status.heartbeats.iter().any(|heartbeat| heartbeat.node == node);
        for (node, missing) in &mut self.members {
            let since = *missing.get_or_insert(now);
            *missing = (!listed(*node)).then_some(since);
        }
        let me = self.me;
        let still_counts = |missing: Option<Nanos>| missing.is_none_or(|at| now.since(at) < MEMBER_TIMEOUT);
        self.members.retain(|(node, missing)| *node == me || still_counts(*missing));
        let own = Heartbeat { node: me, restored: None };
        for heartbeat in status.heartbeats.iter().chain([&own]) {
            if !self.members.iter().any(|(node, _)| *node == heartbeat.node) {
                self.members.push((heartbeat.node, None));
            }
        }
    }

    /// The nodes as last listed; none while the list may be incomplete, because a node that took a short list for the
    /// whole would use the shares of others.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let complete = self.membership_state == MembershipState::Complete;
        let members = self.members.iter().filter(|_| complete);
        members.map(|(node, _)| *node).collect()
    }

    /// How many nodes to divide limits among.
    pub(crate) fn nodes(&self) -> u32 {
        let listed = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let known = listed.max(self.nodes.unwrap_or(0));
        match (self.membership_state, self.nodes) {
            (MembershipState::Complete, _) | (_, Some(_)) => known,
            (_, None) => known.max(DEFAULT_NODES),
        }
    }

    /// The membership for decisions.
    pub(crate) fn membership(&self) -> Membership {
        Membership {
            me: self.me,
            members: self.members.iter().map(|(node, _)| *node).collect(),
            nodes: self.nodes(),
            is_complete: self.membership_state == MembershipState::Complete,
            share_percent: self.share_percent,
            epoch: self.epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn status(epoch: u64, heartbeats: &[(u64, Option<u64>)]) -> StoreStatus {
        let heartbeat =
            |(node, restored): &(u64, Option<u64>)| Heartbeat { node: NodeId(*node), restored: restored.map(Epoch) };
        StoreStatus {
            epoch: Epoch(epoch),
            at: Nanos::ZERO,
            complete_until: Nanos::new(epoch),
            heartbeats: heartbeats.iter().map(heartbeat).collect(),
        }
    }

    fn exact_state() -> RecoveryState {
        let mut state = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        let first = status(7, &[(1, None), (2, Some(7))]);
        let first = state.on_status(&first, SECOND, || false);
        assert_eq!(first, RecoveryStep::Trust { missing: 0 });
        state.membership_state = MembershipState::Complete;
        state
    }

    #[test]
    fn a_new_store_is_trusted_when_all_other_nodes_have_restored_it() {
        let mut state = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        assert_eq!(state.nodes(), 8);
        let recovering = status(7, &[(1, None), (2, Some(6))]);
        assert_eq!(state.on_status(&recovering, SECOND, || false), RecoveryStep::Wait);
        let done = status(7, &[(1, Some(7)), (2, Some(7))]);
        assert_eq!(state.on_status(&done, SECOND, || false), RecoveryStep::Trust { missing: 0 });
        assert_eq!(state.nodes(), 8, "others may be about to be listed");
        assert_eq!(state.membership().division(1).rank, None);
        assert_eq!(state.members(), [], "nor is such a list saved");
        state.on_status(&done, Nanos::from_secs(2), || false);
        assert_eq!(state.nodes(), 2);
        assert_eq!(state.members(), [1, 2].map(NodeId));
    }

    /// A store that takes over from another may lack the last charges.
    #[test]
    fn a_new_store_is_restored_by_nodes_that_have_counts() {
        let mut state = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        let peers = status(7, &[(2, Some(7))]);
        assert_eq!(state.on_status(&peers, SECOND, || true), RecoveryStep::Restore);
        assert_eq!(state.heartbeat().restored, None);
        state.mark_restored(Epoch(7), state.loss_count());
        assert_eq!(state.on_status(&peers, SECOND, || true), RecoveryStep::Trust { missing: 0 });
    }

    /// Older counts need not be restored, unless counts are missing without a new epoch.
    #[test]
    fn a_new_epoch_reports_until_when_its_counts_are_complete() {
        let mut state = exact_state();
        assert_eq!(state.missing_counts().since, Nanos::new(7));
        state.on_status(&status(8, &[]), SECOND, || false);
        assert_eq!(state.missing_counts().since, Nanos::new(8));
        state.mark_restored(Epoch(8), state.loss_count());
        let all = status(8, &[(1, Some(8)), (2, Some(8))]);
        state.on_status(&all, SECOND, || false);
        assert!(state.mark_lost(SECOND));
        state.on_status(&all, SECOND, || false);
        assert_eq!(state.missing_counts().since, Nanos::ZERO);
        state.on_status(&status(9, &[]), SECOND, || false);
        assert_eq!(state.missing_counts().since, Nanos::ZERO, "not restored yet");
    }

    /// Under traffic a reply comes before the next status. All that a node remembered was restored then, also what had
    /// been refunded or reset before an intact restart.
    #[test]
    fn an_epoch_that_a_reply_shows_first_needs_no_older_counts() {
        let mut state = exact_state();
        assert!(state.mark_epoch_ended(SECOND) && !state.mark_epoch_ended(SECOND));
        let same = state.on_status(&status(7, &[(2, Some(7))]), SECOND, || false);
        assert_eq!(same, RecoveryStep::Restore, "not trusted without a new status");
        assert_eq!(state.on_status(&status(8, &[]), SECOND, || false), RecoveryStep::Restore);
        assert_eq!(state.missing_counts().since, Nanos::new(8));
        state.on_status(&status(9, &[]), SECOND, || false);
        assert_eq!(state.missing_counts().since, Nanos::ZERO, "not restored yet");

        let mut state = exact_state();
        assert!(state.mark_epoch_ended(SECOND));
        state.mark_counts_missing(SECOND);
        state.on_status(&status(8, &[]), SECOND, || false);
        assert_eq!(state.missing_counts().since, Nanos::ZERO, "counts were missing in the epoch that ended");
    }

    /// Hash slots came from a primary that may have lost counts while this one was being restored, or before its first
    /// status.
    #[test]
    fn hash_slots_that_may_lack_counts_are_restored_in_every_phase() {
        let all = status(8, &[(1, Some(8)), (2, Some(8))]);
        let (old, hash_slot, other) = (Nanos::new(1), HashSlot(5), HashSlot(6));
        let mut state = exact_state();
        assert_eq!(state.on_status(&all, SECOND, || false), RecoveryStep::Restore);
        let began = state.loss_count();
        assert!(!state.mark_slots_missing(vec![hash_slot], SECOND));
        assert!(state.missing_counts().includes(hash_slot, old));
        assert!(!state.missing_counts().includes(other, old));
        assert!(state.missing_counts().includes(other, Nanos::new(8)));
        state.mark_restored(Epoch(8), began);
        assert_eq!(state.on_status(&all, SECOND, || false), RecoveryStep::Restore);
        state.mark_restored(Epoch(8), state.loss_count());
        let trusted = RecoveryStep::Trust { missing: 0 };
        assert_eq!(state.on_status(&all, SECOND, || false), trusted);

        assert!(state.mark_slots_missing(vec![other], SECOND), "was trusted");
        assert!(state.missing_counts().includes(other, old));
        assert!(!state.missing_counts().includes(hash_slot, SECOND), "lost nothing");
        state.on_status(&status(9, &[]), SECOND, || false);
        assert!(state.missing_counts().includes(hash_slot, old), "not restored yet");

        let mut unknown = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        unknown.mark_slots_missing(vec![hash_slot], SECOND);
        assert_eq!(unknown.on_status(&all, SECOND, || true), RecoveryStep::Restore);
        assert!(unknown.missing_counts().includes(hash_slot, old));
        assert!(!unknown.missing_counts().includes(other, old));
    }

    #[test]
    fn a_new_epoch_is_restored_and_trusted_when_all_nodes_have_restored_or_after_a_second() {
        for (at, heartbeats, want) in [
            (1_100, &[(1, Some(8)), (2, Some(7))][..], RecoveryStep::Wait),
            (1_100, &[(1, Some(8)), (2, Some(8))], RecoveryStep::Trust { missing: 0 }),
            (1_100, &[(1, Some(8))], RecoveryStep::Wait),
            (2_000, &[(1, Some(8))], RecoveryStep::Trust { missing: 1 }),
        ] {
            let mut state = exact_state();
            assert_eq!(state.on_status(&status(8, &[]), SECOND, || false), RecoveryStep::Restore);
            assert!(!state.is_exact());
            state.mark_restored(Epoch(8), state.loss_count());
            let step = state.on_status(&status(8, heartbeats), Nanos::from_millis(at), || false);
            assert_eq!(step, want, "{at} {heartbeats:?}");
        }
    }

    #[test]
    fn a_record_lost_within_the_same_epoch_is_restored_by_this_node_alone() {
        let mut state = exact_state();
        assert!(state.mark_lost(SECOND) && !state.mark_lost(SECOND));
        let peers = status(7, &[(1, None), (2, Some(7))]);
        assert_eq!(state.on_status(&peers, SECOND, || false), RecoveryStep::Restore);
        state.mark_restored(Epoch(7), state.loss_count());
        assert_eq!(state.on_status(&peers, SECOND, || false), RecoveryStep::Trust { missing: 0 });
    }

    /// The list is empty after an outage. The first node to come back once used all shares as its own.
    #[test]
    fn a_node_counts_until_it_was_missing_from_good_pings_for_a_while() {
        let mut state = exact_state();
        let alone = status(7, &[(1, Some(7))]);
        for (at, nodes) in [(2, 2), (6, 2), (7, 1)] {
            state.on_status(&alone, Nanos::from_secs(at), || false);
            assert_eq!(state.nodes(), nodes, "at {at} s");
        }
        let mut state = exact_state();
        state.on_status(&alone, Nanos::from_secs(2), || false);
        state.mark_unreachable();
        state.on_status(&alone, Nanos::from_secs(60), || false);
        assert_eq!(state.nodes(), 2);
    }
}
