//! Whether this node may believe the store, and with whom it shares it.
//!
//! A store that lost counts is believed again when every node of the last list has merged what it
//! remembers, or after a while. Pure: vitals and time go in.

use std::collections::BTreeSet;

use tidegate_core::store::{Epoch, HashSlot, Heartbeat, NodeId, StoreStatus};
use tidegate_core::units::Nanos;

use super::membership::Membership;
use super::settings::{DEFAULT_NODES, ResilienceSettings};

/// How long a node may be missing from the list before it no longer counts.
const MEMBER_TIMEOUT: Nanos = Nanos::from_secs(5);

/// How long it may take until every node that lives is listed: a few pings.
const MEMBERSHIP_FILL_TIME: Nanos = Nanos::from_secs(1);

/// What a node knows about its store and its peers.
#[derive(Clone, Debug)]
pub(super) struct RecoveryState {
    me: NodeId,
    phase: RecoveryPhase,
    epoch: Option<Epoch>,
    restored: Option<Epoch>,
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

/// What the store may lack of what a node has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MissingCounts {
    /// What was seen since then, by the store's clock.
    since: Nanos,
    /// What was ever seen of these slots.
    hash_slots: BTreeSet<HashSlot>,
}

impl MissingCounts {
    /// Whether it includes what was seen of a slot at a time.
    pub(super) fn includes(&self, hash_slot: HashSlot, at: Nanos) -> bool {
        at >= self.since || self.hash_slots.contains(&hash_slot)
    }
}

/// Whether the list of nodes can be complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MembershipState {
    /// No: the store has not been heard.
    Unknown,
    /// It has, since then: others may be just about to be listed.
    Filling { since: Nanos },
    /// Whoever was there has had time to be listed.
    Complete,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecoveryPhase {
    /// The store has not been met yet.
    Unknown,
    /// It is believed.
    Exact,
    /// It lost counts; the nodes are putting back what they remember.
    Recovering { since: Nanos },
}

/// What is to be done after vitals were heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecoveryStep {
    /// Nothing: the store is believed.
    Nothing,
    /// Merge what is remembered.
    Restore,
    /// Wait for the others.
    Wait,
    /// The store is trusted again. So many nodes have not restored what they remember within the time that
    /// they had.
    Trust { missing: usize },
}

impl RecoveryState {
    pub(super) fn new(me: NodeId, settings: &ResilienceSettings) -> Self {
        RecoveryState {
            me,
            phase: RecoveryPhase::Unknown,
            epoch: None,
            restored: None,
            missing_counts: MissingCounts {
                since: Nanos::MAX,
                hash_slots: BTreeSet::new(),
            },
            loss_count: 0,
            members: settings.members.iter().map(|node| (*node, None)).collect(),
            membership_state: match settings.members.is_empty() {
                true => MembershipState::Unknown,
                false => MembershipState::Complete,
            },
            nodes: settings.nodes,
            share_percent: settings.share_percent,
            recovery_timeout: settings.recovery_timeout,
        }
    }

    /// The life the store is known by.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    pub(super) fn is_exact(&self) -> bool {
        self.phase == RecoveryPhase::Exact
    }

    pub(super) fn is_recovering(&self) -> bool {
        matches!(self.phase, RecoveryPhase::Recovering { .. })
    }

    /// What is to be restored.
    pub(super) fn missing_counts(&self) -> &MissingCounts {
        &self.missing_counts
    }

    /// The same once these vitals are taken note of. What they say of another life holds only if the node had restored
    /// what it remembers into the one before.
    pub(super) fn missing_counts_after(&self, status: &StoreStatus) -> MissingCounts {
        let mut missing_counts = self.missing_counts.clone();
        match self.epoch {
            Some(epoch) if epoch == status.epoch => {}
            Some(epoch) if self.restored != Some(epoch) => missing_counts.since = Nanos::ZERO,
            Some(_) => missing_counts.since = status.complete_until,
            None => missing_counts.since = missing_counts.since.min(status.complete_until),
        }
        missing_counts
    }

    /// How often counts may have gone missing without a new epoch.
    pub(super) fn loss_count(&self) -> u64 {
        self.loss_count
    }

    /// What to tell the others.
    pub(super) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            node: self.me,
            restored: self.restored,
        }
    }

    /// The store has lost counts. Whether that is news.
    pub(super) fn mark_lost(&mut self, now: Nanos) -> bool {
        self.is_exact() && self.mark_counts_missing(now)
    }

    /// The store may lack counts that it should have, whatever was restored so far. Whether it was trusted.
    pub(super) fn mark_counts_missing(&mut self, now: Nanos) -> bool {
        self.missing_counts.since = Nanos::ZERO;
        self.restart_recovery(now)
    }

    /// The same of some slots, which have come to it.
    pub(super) fn mark_slots_missing(&mut self, hash_slots: Vec<HashSlot>, now: Nanos) -> bool {
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

    /// The store can be asked again: the others are given their time from here on.
    pub(super) fn mark_reachable(&mut self, now: Nanos) {
        if let RecoveryPhase::Recovering { since } = &mut self.phase {
            *since = now;
        }
    }

    /// The store did not answer: who is missing from its list is not known.
    pub(super) fn mark_unreachable(&mut self) {
        for (_, missing) in &mut self.members {
            *missing = None;
        }
        if self.membership_state != MembershipState::Complete {
            self.membership_state = MembershipState::Unknown;
        }
    }

    /// The store told how it is and who is there. `has_any_to_restore` says whether this node knows counts that
    /// should be in it, and is asked when the store is met for the first time.
    pub(super) fn on_status(
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
                self.restored = None;
            }
            // Whoever has just started remembers nothing, but the others may be about to. Where a
            // store takes over from another, it may not have heard the last of it.
            None => {
                self.phase = RecoveryPhase::Recovering { since: now };
                self.restored = (!has_any_to_restore()).then_some(status.epoch);
            }
        }
        self.epoch = Some(status.epoch);
        self.membership_state = match self.membership_state {
            MembershipState::Unknown => MembershipState::Filling { since: now },
            MembershipState::Filling { since } if now.since(since) >= MEMBERSHIP_FILL_TIME => {
                MembershipState::Complete
            }
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

    /// All that this node remembers is in the store, if no more counts may have gone missing than when it began.
    pub(super) fn mark_restored(&mut self, epoch: Epoch, loss_count: u64) {
        if loss_count == self.loss_count {
            self.restored = Some(epoch);
            self.missing_counts.hash_slots.clear();
        }
    }

    /// How many other nodes have not restored what they remember.
    fn missing(&self, status: &StoreStatus) -> usize {
        let unrestored = |node: &NodeId| {
            let mut heartbeats = status.heartbeats.iter();
            !heartbeats.any(|heartbeat| {
                heartbeat.node == *node && heartbeat.restored == Some(status.epoch)
            })
        };
        let here = || status.heartbeats.iter().map(|heartbeat| heartbeat.node);
        let others = |node: &NodeId| *node != self.me;
        if self.members.is_empty() {
            return here().filter(others).filter(unrestored).count();
        }
        let members = self.members.iter().map(|(node, _)| node);
        members
            .filter(|node| others(node) && unrestored(node))
            .count()
    }

    /// Who is not listed stays on the roster for a while: after an outage the list is empty and fills
    /// as nodes come back, and whoever took it at its word would hold the shares of all the others.
    fn update_members(&mut self, status: &StoreStatus, now: Nanos) {
        let listed = |node: NodeId| {
            status
                .heartbeats
                .iter()
                .any(|heartbeat| heartbeat.node == node)
        };
        for (node, missing) in &mut self.members {
            let since = *missing.get_or_insert(now);
            *missing = (!listed(*node)).then_some(since);
        }
        let me = self.me;
        let here = |missing: Option<Nanos>| missing.is_none_or(|at| now.since(at) < MEMBER_TIMEOUT);
        self.members
            .retain(|(node, missing)| *node == me || here(*missing));
        let own = Heartbeat {
            node: me,
            restored: None,
        };
        for heartbeat in status.heartbeats.iter().chain([&own]) {
            if !self.members.iter().any(|(node, _)| *node == heartbeat.node) {
                self.members.push((heartbeat.node, None));
            }
        }
    }

    /// The nodes as last listed; none as long as the list may be short, because whoever took a short
    /// one for the whole would hold the shares of others.
    pub(super) fn members(&self) -> Vec<NodeId> {
        let complete = self.membership_state == MembershipState::Complete;
        let members = self.members.iter().filter(|_| complete);
        members.map(|(node, _)| *node).collect()
    }

    /// How many nodes to reckon with.
    pub(super) fn nodes(&self) -> u32 {
        let listed = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let known = listed.max(self.nodes.unwrap_or(0));
        match (self.membership_state, self.nodes) {
            (MembershipState::Complete, _) | (_, Some(_)) => known,
            (_, None) => known.max(DEFAULT_NODES),
        }
    }

    /// What decisions need to know of it.
    pub(super) fn membership(&self) -> Membership {
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
        let heartbeat = |(node, restored): &(u64, Option<u64>)| Heartbeat {
            node: NodeId(*node),
            restored: restored.map(Epoch),
        };
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
    fn a_store_just_met_is_believed_when_those_who_know_it_do() {
        let mut state = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        assert_eq!(state.nodes(), 8);
        let recovering = status(7, &[(1, None), (2, Some(6))]);
        assert_eq!(
            state.on_status(&recovering, SECOND, || false),
            RecoveryStep::Wait
        );
        let done = status(7, &[(1, Some(7)), (2, Some(7))]);
        assert_eq!(
            state.on_status(&done, SECOND, || false),
            RecoveryStep::Trust { missing: 0 }
        );
        assert_eq!(state.nodes(), 8, "others may be about to be listed");
        assert_eq!(state.membership().division(1).rank, None);
        assert_eq!(state.members(), [], "nor is such a list kept");
        state.on_status(&done, Nanos::from_secs(2), || false);
        assert_eq!(state.nodes(), 2);
        assert_eq!(state.members(), [1, 2].map(NodeId));
    }

    /// A store that takes over from another may not have heard the last of it.
    #[test]
    fn a_store_just_met_is_seeded_by_whoever_remembers() {
        let mut state = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        let peers = status(7, &[(2, Some(7))]);
        assert_eq!(
            state.on_status(&peers, SECOND, || true),
            RecoveryStep::Restore
        );
        assert_eq!(state.heartbeat().restored, None);
        state.mark_restored(Epoch(7), state.loss_count());
        assert_eq!(
            state.on_status(&peers, SECOND, || true),
            RecoveryStep::Trust { missing: 0 }
        );
    }

    /// What was seen before need not be restored, unless counts are missing without a new epoch.
    #[test]
    fn a_new_epoch_says_how_far_the_data_is_whole() {
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
        assert_eq!(
            state.missing_counts().since,
            Nanos::ZERO,
            "not restored yet"
        );
    }

    /// Hash slots came from a primary that may have lost counts while this one was being restored, or before it was met.
    #[test]
    fn slots_that_may_lack_counts_are_restored_whatever_was_under_way() {
        let all = status(8, &[(1, Some(8)), (2, Some(8))]);
        let (old, slot, other) = (Nanos::new(1), HashSlot(5), HashSlot(6));
        let mut state = exact_state();
        assert_eq!(
            state.on_status(&all, SECOND, || false),
            RecoveryStep::Restore
        );
        let began = state.loss_count();
        assert!(!state.mark_slots_missing(vec![slot], SECOND));
        assert!(state.missing_counts().includes(slot, old));
        assert!(!state.missing_counts().includes(other, old));
        assert!(state.missing_counts().includes(other, Nanos::new(8)));
        state.mark_restored(Epoch(8), began);
        assert_eq!(
            state.on_status(&all, SECOND, || false),
            RecoveryStep::Restore
        );
        state.mark_restored(Epoch(8), state.loss_count());
        let trusted = RecoveryStep::Trust { missing: 0 };
        assert_eq!(state.on_status(&all, SECOND, || false), trusted);

        assert!(state.mark_slots_missing(vec![other], SECOND), "was trusted");
        assert!(state.missing_counts().includes(other, old));
        assert!(
            !state.missing_counts().includes(slot, SECOND),
            "lost nothing"
        );
        state.on_status(&status(9, &[]), SECOND, || false);
        assert!(
            state.missing_counts().includes(slot, old),
            "not restored yet"
        );

        let mut unmet = RecoveryState::new(NodeId(1), &ResilienceSettings::default());
        unmet.mark_slots_missing(vec![slot], SECOND);
        assert_eq!(
            unmet.on_status(&all, SECOND, || true),
            RecoveryStep::Restore
        );
        assert!(unmet.missing_counts().includes(slot, old));
        assert!(!unmet.missing_counts().includes(other, old));
    }

    #[test]
    fn a_new_life_is_seeded_and_believed_when_all_have_done_so_or_after_a_second() {
        for (at, heartbeats, want) in [
            (1_100, &[(1, Some(8)), (2, Some(7))][..], RecoveryStep::Wait),
            (
                1_100,
                &[(1, Some(8)), (2, Some(8))],
                RecoveryStep::Trust { missing: 0 },
            ),
            (1_100, &[(1, Some(8))], RecoveryStep::Wait),
            (2_000, &[(1, Some(8))], RecoveryStep::Trust { missing: 1 }),
        ] {
            let mut state = exact_state();
            assert_eq!(
                state.on_status(&status(8, &[]), SECOND, || false),
                RecoveryStep::Restore
            );
            assert!(!state.is_exact());
            state.mark_restored(Epoch(8), state.loss_count());
            let step = state.on_status(&status(8, heartbeats), Nanos::from_millis(at), || false);
            assert_eq!(step, want, "{at} {heartbeats:?}");
        }
    }

    #[test]
    fn a_record_that_is_gone_from_the_same_life_is_put_back_by_this_node_alone() {
        let mut state = exact_state();
        assert!(state.mark_lost(SECOND) && !state.mark_lost(SECOND));
        let peers = status(7, &[(1, None), (2, Some(7))]);
        assert_eq!(
            state.on_status(&peers, SECOND, || false),
            RecoveryStep::Restore
        );
        state.mark_restored(Epoch(7), state.loss_count());
        assert_eq!(
            state.on_status(&peers, SECOND, || false),
            RecoveryStep::Trust { missing: 0 }
        );
    }

    /// The list is empty after an outage. The first to come back once took all shares for its own.
    #[test]
    fn a_node_counts_until_it_was_missing_for_a_while_of_good_pings() {
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
