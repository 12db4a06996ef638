//! Changes of the map, without any server: nothing listens at these addresses.

use std::future::Future;

use super::topology_refresh::RefreshResult;
use super::*;
use redis::Value;
use tidegate_core::units::Nanos;

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

/// A map of primaries with these names, each on a port of its own, with equal numbers of hash slots.
fn map(primaries: &[(&str, u16)]) -> HashSlotMap {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let width = 16_384 / i64::try_from(primaries.len()).unwrap();
    let ranges = (0..).zip(primaries).map(|(i, (id, port))| {
        let server = vec![bulk("127.0.0.1"), Value::Int((*port).into()), bulk(id)];
        let hash_slots = [i * width, (i + 1) * width - 1].map(Value::Int);
        Value::Array(hash_slots.into_iter().chain([Value::Array(server)]).collect())
    });
    HashSlotMap::parse(&Value::Array(ranges.collect()), "127.0.0.1").unwrap()
}

fn cluster(map: HashSlotMap) -> RedisCluster {
    let config = RedisConfig::new("");
    let cluster = RedisCluster::without_map(Vec::new(), Access::default(), &config, Arc::new([]));
    assert_eq!(cluster.shard_of(HashSlot(0)), UNASSIGNED_SHARD);
    assert_eq!(cluster.adopt(map), RefreshResult::Changed);
    cluster
}

fn redirect(hash_slot: u16, to: &str, mode: SendMode) -> Redirect {
    let (hash_slot, to) = (HashSlot(hash_slot), to.to_owned());
    Redirect { hash_slot, to, mode }
}

/// Whether a refresh of the map was requested.
async fn was_notified(cluster: &RedisCluster) -> bool {
    let soon = std::future::ready(());
    tokio::select! {
        biased;
        () = cluster.refresh_needed.notified() => true,
        () = soon => false,
    }
}

#[test]
fn a_moved_hash_slot_belongs_to_its_new_primary_at_once() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|hash_slot| cluster.primary_of(HashSlot(hash_slot)).unwrap());
        let target = cluster.redirect_target(&redirect(7, ":2", SendMode::Plain), &a).unwrap();
        assert_eq!(target.shard_id, b.shard_id);
        assert_eq!(cluster.shard_of(HashSlot(7)), b.shard_id);
        assert_eq!(cluster.shard_of(HashSlot(8)), a.shard_id);
        let back = redirect(7, "127.0.0.1:1", SendMode::Plain);
        assert_eq!(cluster.redirect_target(&back, &b).unwrap().shard_id, a.shard_id);
        assert_eq!(cluster.shard_of(HashSlot(7)), a.shard_id);
    });
}

#[test]
fn a_hash_slot_that_is_moving_still_belongs_to_its_old_primary() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|hash_slot| cluster.primary_of(HashSlot(hash_slot)).unwrap());
        let asking = redirect(7, "127.0.0.1:2", SendMode::Asking);
        assert_eq!(cluster.redirect_target(&asking, &a).unwrap().shard_id, b.shard_id);
        assert_eq!(cluster.shard_of(HashSlot(7)), a.shard_id);
        assert!(!was_notified(&cluster).await);
    });
}

#[test]
fn an_unknown_primary_triggers_a_topology_refresh() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let a = cluster.primary_of(HashSlot(0)).unwrap();
        for mode in [SendMode::Plain, SendMode::Asking] {
            let stranger = redirect(7, "127.0.0.1:3", mode);
            assert!(cluster.redirect_target(&stranger, &a).is_none());
            assert_eq!(cluster.shard_of(HashSlot(7)), a.shard_id);
            assert!(was_notified(&cluster).await);
        }
    });
}

#[test]
fn a_moved_hash_slot_is_whole_since_the_later_loss() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|hash_slot| cluster.primary_of(HashSlot(hash_slot)).unwrap());
        a.server_state.note_data_epoch(9_000 << 20 | 1);
        b.server_state.note_data_epoch(7_000 << 20 | 2);
        cluster.redirect_target(&redirect(7, ":2", SendMode::Plain), &a).unwrap();
        assert_eq!(b.server_state.data_since(), Nanos::from_millis(9_000));
        assert_eq!(b.server_state.data_epoch(), Some(7_000 << 20 | 2));
    });
}

/// A shard is identified by its name: handles must find it at its new address, with its state.
#[test]
fn a_primary_at_another_address_is_the_same_shard() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|hash_slot| cluster.primary_of(HashSlot(hash_slot)).unwrap());
        a.server_state.note_data_epoch(5);
        assert_eq!(cluster.adopt(map(&[("a", 1), ("b", 2)])), RefreshResult::Unchanged);
        assert_eq!(cluster.adopt(map(&[("a", 9), ("b", 2)])), RefreshResult::Changed);
        let moved = cluster.primary(a.shard_id).unwrap();
        assert!(!Arc::ptr_eq(&moved, &a) && moved.server_state.data_epoch() == Some(5));
        assert!(Arc::ptr_eq(&cluster.primary(b.shard_id).unwrap(), &b));
        // A replica takes over: another shard, with the state of the data.
        assert_eq!(cluster.adopt(map(&[("c", 9), ("b", 2)])), RefreshResult::Changed);
        assert!(cluster.primary(a.shard_id).is_none());
        let new = cluster.primary_of(HashSlot(0)).unwrap();
        assert!(new.shard_id != a.shard_id && Arc::ptr_eq(&new.server_state, &a.server_state));
        let mut shard_ids = vec![new.shard_id, b.shard_id];
        shard_ids.sort();
        let mut ids = cluster.shard_ids();
        ids.sort();
        assert_eq!(ids, shard_ids);
    });
}
