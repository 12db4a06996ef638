//! Maps of primaries and their hash slots, and the states that result.

use std::collections::BTreeMap;

use redis::Value;

use super::*;
use tidegate_core::units::Nanos;

/// A map in which each primary serves the hash slots from the first to the last number.
fn map(ranges: &[(&str, u16, u16)]) -> HashSlotMap {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let ranges = ranges.iter().map(|(id, first, last)| {
        let server = vec![bulk("127.0.0.1"), Value::Int(1), bulk(id)];
        let hash_slots = [*first, *last].map(|hash_slot| Value::Int(hash_slot.into()));
        Value::Array(hash_slots.into_iter().chain([Value::Array(server)]).collect())
    });
    HashSlotMap::parse(&Value::Array(ranges.collect()), "127.0.0.1").unwrap()
}

/// The states of the primaries of one map after another.
#[derive(Default)]
struct MapSequence {
    states: HashSlotStates,
    last: BTreeMap<ShardId, Arc<ServerState>>,
    /// A state that is not whole.
    not_whole: Option<(Arc<ServerState>, SourceState)>,
}

impl MapSequence {
    fn next<const N: usize>(&mut self, ranges: [(&str, u16, u16); N]) -> [Arc<ServerState>; N] {
        let map = map(&ranges);
        let state = |server_state: &Arc<ServerState>| match &self.not_whole {
            Some((other, state)) if Arc::ptr_eq(other, server_state) => *state,
            _ => SourceState::Whole,
        };
        let before = |shard_id| self.last.get(&shard_id);
        let taken = self.states.take_over(&map, before, state);
        let shard_ids = map.primaries.iter().map(|primary| primary.shard_id);
        self.last = shard_ids.zip(taken.iter().cloned()).collect();
        ranges.map(|(id, ..)| {
            let primary = map.primaries.iter().position(|primary| primary.id == id);
            Arc::clone(&taken[primary.unwrap()])
        })
    }
}

fn millis(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

fn since(server_state: &ServerState) -> Nanos {
    server_state.data_since()
}

#[test]
fn a_replica_that_takes_over_has_the_state_of_the_primary() {
    let mut maps = MapSequence::default();
    let [a, b] = maps.next([("a", 0, 99), ("b", 100, 199)]);
    let [c, b_after] = maps.next([("c", 0, 99), ("b", 100, 199)]);
    assert!(Arc::ptr_eq(&a, &c) && Arc::ptr_eq(&b, &b_after));
    assert!(!Arc::ptr_eq(&a, &b));
    let [a_again, _] = maps.next([("a", 0, 99), ("b", 100, 199)]);
    assert!(Arc::ptr_eq(&a, &a_again));
}

#[test]
fn a_replica_that_takes_over_late_has_the_state_of_the_primary() {
    let mut maps = MapSequence::default();
    let [a, _] = maps.next([("a", 0, 99), ("b", 100, 199)]);
    maps.next([("b", 100, 199)]);
    maps.next([("b", 100, 198)]);
    let [c, _] = maps.next([("c", 0, 99), ("b", 100, 199)]);
    assert!(Arc::ptr_eq(&a, &c));
    maps.next([("c", 0, 199)]);
    let states: Vec<_> = maps.states.0.iter().flatten().collect();
    assert!(states.iter().all(|state| Arc::ptr_eq(state, states[0])), "unused states are dropped");
}

#[test]
fn a_new_primary_begins_with_the_later_epoch_of_its_sources() {
    let mut maps = MapSequence::default();
    let [a, b] = maps.next([("a", 0, 99), ("b", 100, 199)]);
    a.note_data_epoch(7_000 << 20 | 1);
    b.note_data_epoch(9_000 << 20 | 2);
    let [c, ..] = maps.next([("c", 90, 109), ("a", 0, 89), ("b", 110, 199)]);
    assert!(!Arc::ptr_eq(&c, &a) && !Arc::ptr_eq(&c, &b));
    assert_eq!((c.data_epoch(), since(&c)), (b.data_epoch(), millis(9_000)));
    assert_eq!((since(&a), since(&b)), (millis(7_000), millis(9_000)));
    assert_eq!(c.acknowledged.lock().millis(), 0, "of another server");
}

#[test]
fn hash_slots_bring_the_time_since_which_they_are_whole() {
    let mut maps = MapSequence::default();
    let [a, b] = maps.next([("a", 0, 99), ("b", 100, 199)]);
    a.note_data_epoch(9_000 << 20 | 1);
    b.note_data_epoch(7_000 << 20 | 2);
    maps.next([("a", 0, 98), ("b", 99, 199)]);
    assert_eq!(b.data_epoch(), Some(7_000 << 20 | 2), "nothing was lost");
    assert_eq!(since(&b), millis(9_000));
    assert_eq!(since(&a), millis(9_000));
}

/// Heartbeats of one primary show nothing of the other.
#[test]
fn when_two_primaries_become_one_the_second_counts_as_lost() {
    let mut maps = MapSequence::default();
    let [a, b] = maps.next([("a", 0, 99), ("b", 100, 149)]);
    a.note_heartbeat(1, b"a", millis(5_000));
    b.note_heartbeat(2, b"b", millis(6_000));
    let [c] = maps.next([("c", 0, 149)]);
    assert!(Arc::ptr_eq(&c, &a), "most of its hash slots");
    assert_eq!(since(&c), millis(6_001));
}

#[test]
fn when_one_primary_becomes_two_each_has_a_state_of_its_own() {
    let mut maps = MapSequence::default();
    let [a] = maps.next([("a", 0, 199)]);
    a.note_heartbeat(1, b"a", millis(5_000));
    let [b, c] = maps.next([("b", 0, 99), ("c", 100, 199)]);
    assert!(Arc::ptr_eq(&b, &a) && !Arc::ptr_eq(&c, &a));
    assert_eq!(since(&c), millis(5_001));
}

/// The data of an unreachable primary was not moved, and losses that this node has not restored are missing where the
/// hash slots go.
#[test]
fn hash_slots_of_a_primary_that_is_not_whole_may_lack_counts() {
    for (state, raised, lacks) in
        [(SourceState::Whole, 0, false), (SourceState::Unrestored, 0, true), (SourceState::Unverified, 5_001, true)]
    {
        let mut maps = MapSequence::default();
        let [a, b] = maps.next([("a", 0, 99), ("b", 100, 199)]);
        a.note_heartbeat(1, b"a", millis(5_000));
        maps.not_whole = Some((a, state));
        maps.next([("b", 0, 199)]);
        assert_eq!(since(&b), millis(raised));
        let lacking = (0..100).filter(|_| lacks).map(HashSlot);
        assert_eq!(b.take_incomplete_hash_slots(), lacking.collect::<Vec<_>>());
    }
}
