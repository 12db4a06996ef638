//! Whether this node may believe the store, and with whom it shares it.
//!
//! A store that lost counts is believed again when every node of the last list has merged what it
//! remembers, or after a while. Pure: vitals and time go in.

use std::collections::BTreeSet;

use tidegate_core::store::{Beat, Life, NodeId, Slot, Vitals};
use tidegate_core::units::Nanos;

use super::membership::Membership;
use super::settings::{NODES_UNKNOWN, Settings};

/// How long a node may be missing from the list before it no longer counts.
const MISSED: Nanos = Nanos::from_secs(5);

/// How long it may take until every node that lives is listed: a few pings.
const LISTED: Nanos = Nanos::from_secs(1);

/// What a node knows about its store and its peers.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    me: NodeId,
    phase: Phase,
    life: Option<Life>,
    seeded: Option<Life>,
    lacking: Lacking,
    /// How often counts may have gone missing without a new epoch.
    lack_count: u64,
    /// The nodes as last listed, and since when each has been missing.
    roster: Vec<(NodeId, Option<Nanos>)>,
    listing: Listing,
    nodes: Option<u32>,
    share_percent: u32,
    patience: Nanos,
}

/// What the store may lack of what a node has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lacking {
    /// What was seen since then, by the store's clock.
    since: Nanos,
    /// What was ever seen of these slots.
    slots: BTreeSet<Slot>,
}

impl Lacking {
    /// Whether it includes what was seen of a slot at a time.
    pub(super) fn includes(&self, slot: Slot, at: Nanos) -> bool {
        at >= self.since || self.slots.contains(&slot)
    }
}

/// Whether the list of nodes can be complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Listing {
    /// No: the store has not been heard.
    Unheard,
    /// It has, since then: others may be just about to be listed.
    Filling { since: Nanos },
    /// Whoever was there has had time to be listed.
    Complete,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The store has not been met yet.
    Unmet,
    /// It is believed.
    Exact,
    /// It lost counts; the nodes are putting back what they remember.
    Recovering { since: Nanos },
}

/// What is to be done after vitals were heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Nothing: the store is believed.
    Nothing,
    /// Merge what is remembered.
    Seed,
    /// Wait for the others.
    Wait,
    /// The store is trusted again. So many nodes have not restored what they remember within the time that
    /// they had.
    Trust { missing: usize },
}

impl Standing {
    pub(super) fn new(me: NodeId, settings: &Settings) -> Self {
        Standing {
            me,
            phase: Phase::Unmet,
            life: None,
            seeded: None,
            lacking: Lacking {
                since: Nanos::MAX,
                slots: BTreeSet::new(),
            },
            lack_count: 0,
            roster: settings.roster.iter().map(|node| (*node, None)).collect(),
            listing: match settings.roster.is_empty() {
                true => Listing::Unheard,
                false => Listing::Complete,
            },
            nodes: settings.nodes,
            share_percent: settings.share_percent,
            patience: settings.recovery,
        }
    }

    /// The life the store is known by.
    pub(super) fn life(&self) -> Option<Life> {
        self.life
    }

    pub(super) fn is_exact(&self) -> bool {
        self.phase == Phase::Exact
    }

    pub(super) fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovering { .. })
    }

    /// What is to be restored.
    pub(super) fn lacking(&self) -> &Lacking {
        &self.lacking
    }

    /// The same once these vitals are taken note of. What they say of another life holds only if the node had restored
    /// what it remembers into the one before.
    pub(super) fn lacking_in(&self, vitals: &Vitals) -> Lacking {
        let mut lacking = self.lacking.clone();
        match self.life {
            Some(life) if life == vitals.life => {}
            Some(life) if self.seeded != Some(life) => lacking.since = Nanos::ZERO,
            Some(_) => lacking.since = vitals.whole_until,
            None => lacking.since = lacking.since.min(vitals.whole_until),
        }
        lacking
    }

    /// How often counts may have gone missing without a new epoch.
    pub(super) fn lack_count(&self) -> u64 {
        self.lack_count
    }

    /// What to tell the others.
    pub(super) fn beat(&self) -> Beat {
        Beat {
            node: self.me,
            seeded: self.seeded,
        }
    }

    /// The store has lost counts. Whether that is news.
    pub(super) fn lost(&mut self, now: Nanos) -> bool {
        self.is_exact() && self.may_lack_counts(now)
    }

    /// The store may lack counts that it should have, whatever was restored so far. Whether it was trusted.
    pub(super) fn may_lack_counts(&mut self, now: Nanos) -> bool {
        self.lacking.since = Nanos::ZERO;
        self.restores_again(now)
    }

    /// The same of some slots, which have come to it.
    pub(super) fn may_lack_slots(&mut self, slots: Vec<Slot>, now: Nanos) -> bool {
        if self.is_exact() {
            self.lacking.since = Nanos::MAX;
        }
        self.lacking.slots.extend(slots);
        self.restores_again(now)
    }

    fn restores_again(&mut self, now: Nanos) -> bool {
        let was_exact = self.is_exact();
        if was_exact {
            self.phase = Phase::Recovering { since: now };
        }
        self.seeded = None;
        self.lack_count += 1;
        was_exact
    }

    /// The store can be asked again: the others are given their time from here on.
    pub(super) fn reachable(&mut self, now: Nanos) {
        if let Phase::Recovering { since } = &mut self.phase {
            *since = now;
        }
    }

    /// The store did not answer: who is missing from its list is not known.
    pub(super) fn unheard(&mut self) {
        for (_, missing) in &mut self.roster {
            *missing = None;
        }
        if self.listing != Listing::Complete {
            self.listing = Listing::Unheard;
        }
    }

    /// The store told how it is and who is there. `remembers` says whether this node knows counts that
    /// should be in it, and is asked when the store is met for the first time.
    pub(super) fn heard(
        &mut self,
        vitals: &Vitals,
        now: Nanos,
        remembers: impl FnOnce() -> bool,
    ) -> Next {
        self.lacking = self.lacking_in(vitals);
        match self.life {
            Some(known) if known == vitals.life => {}
            Some(_) => {
                self.phase = Phase::Recovering { since: now };
                self.seeded = None;
            }
            // Whoever has just started remembers nothing, but the others may be about to. Where a
            // store takes over from another, it may not have heard the last of it.
            None => {
                self.phase = Phase::Recovering { since: now };
                self.seeded = (!remembers()).then_some(vitals.life);
            }
        }
        self.life = Some(vitals.life);
        self.listing = match self.listing {
            Listing::Unheard => Listing::Filling { since: now },
            Listing::Filling { since } if now.since(since) >= LISTED => Listing::Complete,
            same => same,
        };
        let Phase::Recovering { since } = self.phase else {
            self.list(vitals, now);
            return Next::Nothing;
        };
        if self.seeded != self.life {
            return Next::Seed;
        }
        let missing = self.missing(vitals);
        if missing > 0 && now.since(since) < self.patience {
            return Next::Wait;
        }
        self.phase = Phase::Exact;
        self.list(vitals, now);
        Next::Trust { missing }
    }

    /// All that this node remembers is in the store, if no more counts may have gone missing than when it began.
    pub(super) fn seeded(&mut self, life: Life, lack_count: u64) {
        if lack_count == self.lack_count {
            self.seeded = Some(life);
            self.lacking.slots.clear();
        }
    }

    /// How many other nodes have not restored what they remember.
    fn missing(&self, vitals: &Vitals) -> usize {
        let unseeded = |node: &NodeId| {
            let mut beats = vitals.beats.iter();
            !beats.any(|beat| beat.node == *node && beat.seeded == Some(vitals.life))
        };
        let here = || vitals.beats.iter().map(|beat| beat.node);
        let others = |node: &NodeId| *node != self.me;
        if self.roster.is_empty() {
            return here().filter(others).filter(unseeded).count();
        }
        let roster = self.roster.iter().map(|(node, _)| node);
        roster.filter(|node| others(node) && unseeded(node)).count()
    }

    /// Who is not listed stays on the roster for a while: after an outage the list is empty and fills
    /// as nodes come back, and whoever took it at its word would hold the shares of all the others.
    fn list(&mut self, vitals: &Vitals, now: Nanos) {
        let listed = |node: NodeId| vitals.beats.iter().any(|beat| beat.node == node);
        for (node, missing) in &mut self.roster {
            let since = *missing.get_or_insert(now);
            *missing = (!listed(*node)).then_some(since);
        }
        let me = self.me;
        let here = |missing: Option<Nanos>| missing.is_none_or(|at| now.since(at) < MISSED);
        self.roster
            .retain(|(node, missing)| *node == me || here(*missing));
        let own = Beat {
            node: me,
            seeded: None,
        };
        for beat in vitals.beats.iter().chain([&own]) {
            if !self.roster.iter().any(|(node, _)| *node == beat.node) {
                self.roster.push((beat.node, None));
            }
        }
    }

    /// The nodes as last listed; none as long as the list may be short, because whoever took a short
    /// one for the whole would hold the shares of others.
    pub(super) fn roster(&self) -> Vec<NodeId> {
        let complete = self.listing == Listing::Complete;
        let roster = self.roster.iter().filter(|_| complete);
        roster.map(|(node, _)| *node).collect()
    }

    /// How many nodes to reckon with.
    pub(super) fn nodes(&self) -> u32 {
        let listed = u32::try_from(self.roster.len()).unwrap_or(u32::MAX);
        let known = listed.max(self.nodes.unwrap_or(0));
        match (self.listing, self.nodes) {
            (Listing::Complete, _) | (_, Some(_)) => known,
            (_, None) => known.max(NODES_UNKNOWN),
        }
    }

    /// What decisions need to know of it.
    pub(super) fn membership(&self) -> Membership {
        Membership {
            me: self.me,
            members: self.roster.iter().map(|(node, _)| *node).collect(),
            nodes: self.nodes(),
            is_complete: self.listing == Listing::Complete,
            share_percent: self.share_percent,
            epoch: self.life,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn vitals(life: u64, beats: &[(u64, Option<u64>)]) -> Vitals {
        let beat = |(node, seeded): &(u64, Option<u64>)| Beat {
            node: NodeId(*node),
            seeded: seeded.map(Life),
        };
        Vitals {
            life: Life(life),
            at: Nanos::ZERO,
            whole_until: Nanos::new(life),
            beats: beats.iter().map(beat).collect(),
        }
    }

    fn settled() -> Standing {
        let mut standing = Standing::new(NodeId(1), &Settings::default());
        let first = vitals(7, &[(1, None), (2, Some(7))]);
        let first = standing.heard(&first, SECOND, || false);
        assert_eq!(first, Next::Trust { missing: 0 });
        standing.listing = Listing::Complete;
        standing
    }

    #[test]
    fn a_store_just_met_is_believed_when_those_who_know_it_do() {
        let mut standing = Standing::new(NodeId(1), &Settings::default());
        assert_eq!(standing.nodes(), 8);
        let recovering = vitals(7, &[(1, None), (2, Some(6))]);
        assert_eq!(standing.heard(&recovering, SECOND, || false), Next::Wait);
        let done = vitals(7, &[(1, Some(7)), (2, Some(7))]);
        assert_eq!(
            standing.heard(&done, SECOND, || false),
            Next::Trust { missing: 0 }
        );
        assert_eq!(standing.nodes(), 8, "others may be about to be listed");
        assert_eq!(standing.membership().division(1).place, None);
        assert_eq!(standing.roster(), [], "nor is such a list kept");
        standing.heard(&done, Nanos::from_secs(2), || false);
        assert_eq!(standing.nodes(), 2);
        assert_eq!(standing.roster(), [1, 2].map(NodeId));
    }

    /// A store that takes over from another may not have heard the last of it.
    #[test]
    fn a_store_just_met_is_seeded_by_whoever_remembers() {
        let mut standing = Standing::new(NodeId(1), &Settings::default());
        let peers = vitals(7, &[(2, Some(7))]);
        assert_eq!(standing.heard(&peers, SECOND, || true), Next::Seed);
        assert_eq!(standing.beat().seeded, None);
        standing.seeded(Life(7), standing.lack_count());
        assert_eq!(
            standing.heard(&peers, SECOND, || true),
            Next::Trust { missing: 0 }
        );
    }

    /// What was seen before need not be restored, unless counts are missing without a new epoch.
    #[test]
    fn a_new_epoch_says_how_far_the_data_is_whole() {
        let mut standing = settled();
        assert_eq!(standing.lacking().since, Nanos::new(7));
        standing.heard(&vitals(8, &[]), SECOND, || false);
        assert_eq!(standing.lacking().since, Nanos::new(8));
        standing.seeded(Life(8), standing.lack_count());
        let all = vitals(8, &[(1, Some(8)), (2, Some(8))]);
        standing.heard(&all, SECOND, || false);
        assert!(standing.lost(SECOND));
        standing.heard(&all, SECOND, || false);
        assert_eq!(standing.lacking().since, Nanos::ZERO);
        standing.heard(&vitals(9, &[]), SECOND, || false);
        assert_eq!(standing.lacking().since, Nanos::ZERO, "not restored yet");
    }

    /// Hash slots came from a primary that may have lost counts while this one was being restored, or before it was met.
    #[test]
    fn slots_that_may_lack_counts_are_restored_whatever_was_under_way() {
        let all = vitals(8, &[(1, Some(8)), (2, Some(8))]);
        let (old, slot, other) = (Nanos::new(1), Slot(5), Slot(6));
        let mut standing = settled();
        assert_eq!(standing.heard(&all, SECOND, || false), Next::Seed);
        let began = standing.lack_count();
        assert!(!standing.may_lack_slots(vec![slot], SECOND));
        assert!(standing.lacking().includes(slot, old));
        assert!(!standing.lacking().includes(other, old));
        assert!(standing.lacking().includes(other, Nanos::new(8)));
        standing.seeded(Life(8), began);
        assert_eq!(standing.heard(&all, SECOND, || false), Next::Seed);
        standing.seeded(Life(8), standing.lack_count());
        let trusted = Next::Trust { missing: 0 };
        assert_eq!(standing.heard(&all, SECOND, || false), trusted);

        assert!(standing.may_lack_slots(vec![other], SECOND), "was trusted");
        assert!(standing.lacking().includes(other, old));
        assert!(!standing.lacking().includes(slot, SECOND), "lost nothing");
        standing.heard(&vitals(9, &[]), SECOND, || false);
        assert!(standing.lacking().includes(slot, old), "not restored yet");

        let mut unmet = Standing::new(NodeId(1), &Settings::default());
        unmet.may_lack_slots(vec![slot], SECOND);
        assert_eq!(unmet.heard(&all, SECOND, || true), Next::Seed);
        assert!(unmet.lacking().includes(slot, old));
        assert!(!unmet.lacking().includes(other, old));
    }

    #[test]
    fn a_new_life_is_seeded_and_believed_when_all_have_done_so_or_after_a_second() {
        for (at, beats, want) in [
            (1_100, &[(1, Some(8)), (2, Some(7))][..], Next::Wait),
            (
                1_100,
                &[(1, Some(8)), (2, Some(8))],
                Next::Trust { missing: 0 },
            ),
            (1_100, &[(1, Some(8))], Next::Wait),
            (2_000, &[(1, Some(8))], Next::Trust { missing: 1 }),
        ] {
            let mut standing = settled();
            assert_eq!(
                standing.heard(&vitals(8, &[]), SECOND, || false),
                Next::Seed
            );
            assert!(!standing.is_exact());
            standing.seeded(Life(8), standing.lack_count());
            let heard = standing.heard(&vitals(8, beats), Nanos::from_millis(at), || false);
            assert_eq!(heard, want, "{at} {beats:?}");
        }
    }

    #[test]
    fn a_record_that_is_gone_from_the_same_life_is_put_back_by_this_node_alone() {
        let mut standing = settled();
        assert!(standing.lost(SECOND) && !standing.lost(SECOND));
        let peers = vitals(7, &[(1, None), (2, Some(7))]);
        assert_eq!(standing.heard(&peers, SECOND, || false), Next::Seed);
        standing.seeded(Life(7), standing.lack_count());
        assert_eq!(
            standing.heard(&peers, SECOND, || false),
            Next::Trust { missing: 0 }
        );
    }

    /// The list is empty after an outage. The first to come back once took all shares for its own.
    #[test]
    fn a_node_counts_until_it_was_missing_for_a_while_of_good_pings() {
        let mut standing = settled();
        let alone = vitals(7, &[(1, Some(7))]);
        for (at, nodes) in [(2, 2), (6, 2), (7, 1)] {
            standing.heard(&alone, Nanos::from_secs(at), || false);
            assert_eq!(standing.nodes(), nodes, "at {at} s");
        }
        let mut standing = settled();
        standing.heard(&alone, Nanos::from_secs(2), || false);
        standing.unheard();
        standing.heard(&alone, Nanos::from_secs(60), || false);
        assert_eq!(standing.nodes(), 2);
    }
}
