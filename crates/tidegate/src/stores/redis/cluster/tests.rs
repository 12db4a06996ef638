//! What the map is made to say, without any server: nobody listens where these lead.

use std::future::Future;

use super::survey::Found;
use super::*;
use tidegate_core::units::Nanos;

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(test);
}

/// A map of primaries with these names, each on a port of its own, with equal numbers of slots.
fn map(primaries: &[(&str, u16)]) -> SlotMap {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let width = 16_384 / i64::try_from(primaries.len()).unwrap();
    let ranges = (0..).zip(primaries).map(|(i, (id, port))| {
        let server = vec![bulk("127.0.0.1"), Value::Int((*port).into()), bulk(id)];
        let slots = [i * width, (i + 1) * width - 1].map(Value::Int);
        Value::Array(slots.into_iter().chain([Value::Array(server)]).collect())
    });
    SlotMap::read(&Value::Array(ranges.collect()), "127.0.0.1").unwrap()
}

fn cluster(map: SlotMap) -> Cluster {
    let config = RedisConfig::new("");
    let cluster = Cluster::unknown(Vec::new(), Access::default(), &config, Arc::new([]));
    assert_eq!(cluster.part_of(Slot(0)), NOWHERE);
    assert_eq!(cluster.adopt(map), Found::New);
    cluster
}

fn redirect(slot: u16, to: &str, entry: Entry) -> Redirect {
    let (slot, to) = (Slot(slot), to.to_owned());
    Redirect { slot, to, entry }
}

/// Whether somebody was told that the map may have changed.
async fn rung(cluster: &Cluster) -> bool {
    let soon = std::future::ready(());
    tokio::select! {
        biased;
        () = cluster.bell.notified() => true,
        () = soon => false,
    }
}

#[test]
fn a_slot_that_has_moved_is_elsewhere_at_once() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|slot| cluster.seat_of(Slot(slot)).unwrap());
        let led = cluster.led(&redirect(7, ":2", Entry::Plain), &a).unwrap();
        assert_eq!(led.part, b.part);
        assert_eq!(cluster.part_of(Slot(7)), b.part);
        assert_eq!(cluster.part_of(Slot(8)), a.part);
        let back = redirect(7, "127.0.0.1:1", Entry::Plain);
        assert_eq!(cluster.led(&back, &b).unwrap().part, a.part);
        assert_eq!(cluster.part_of(Slot(7)), a.part);
    });
}

#[test]
fn a_slot_that_is_moving_is_still_where_it_was() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|slot| cluster.seat_of(Slot(slot)).unwrap());
        let asks = redirect(7, "127.0.0.1:2", Entry::Asking);
        assert_eq!(cluster.led(&asks, &a).unwrap().part, b.part);
        assert_eq!(cluster.part_of(Slot(7)), a.part);
        assert!(!rung(&cluster).await);
    });
}

#[test]
fn whoever_is_not_known_is_asked_about() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let a = cluster.seat_of(Slot(0)).unwrap();
        for entry in [Entry::Plain, Entry::Asking] {
            let stranger = redirect(7, "127.0.0.1:3", entry);
            assert!(cluster.led(&stranger, &a).is_none());
            assert_eq!(cluster.part_of(Slot(7)), a.part);
            assert!(rung(&cluster).await);
        }
    });
}

#[test]
fn a_slot_that_has_moved_is_whole_since_the_later_loss() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|slot| cluster.seat_of(Slot(slot)).unwrap());
        a.memo.note_epoch(9_000 << 20 | 1);
        b.memo.note_epoch(7_000 << 20 | 2);
        cluster.led(&redirect(7, ":2", Entry::Plain), &a).unwrap();
        assert_eq!(b.memo.data_since(), Nanos::from_millis(9_000));
        assert_eq!(b.memo.epoch(), Some(7_000 << 20 | 2));
    });
}

/// A part is its name: handles to it must find it at its new address, with what is known of it.
#[test]
fn a_primary_at_another_address_is_the_same_part() {
    on_runtime(async {
        let cluster = cluster(map(&[("a", 1), ("b", 2)]));
        let [a, b] = [0, 16_000].map(|slot| cluster.seat_of(Slot(slot)).unwrap());
        a.memo.note_epoch(5);
        assert_eq!(cluster.adopt(map(&[("a", 1), ("b", 2)])), Found::Same);
        assert_eq!(cluster.adopt(map(&[("a", 9), ("b", 2)])), Found::New);
        let moved = cluster.seat(a.part).unwrap();
        assert!(!Arc::ptr_eq(&moved, &a) && moved.memo.epoch() == Some(5));
        assert!(Arc::ptr_eq(&cluster.seat(b.part).unwrap(), &b));
        // A replica takes over: another part, with what is known of the data.
        assert_eq!(cluster.adopt(map(&[("c", 9), ("b", 2)])), Found::New);
        assert!(cluster.seat(a.part).is_none());
        let new = cluster.seat_of(Slot(0)).unwrap();
        assert!(new.part != a.part && Arc::ptr_eq(&new.memo, &a.memo));
        let mut parts = vec![new.part, b.part];
        parts.sort();
        let mut ids = cluster.ids();
        ids.sort();
        assert_eq!(ids, parts);
    });
}
