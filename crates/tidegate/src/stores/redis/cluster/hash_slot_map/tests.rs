//! Replies as clusters send them, and odd ones.

use super::*;

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn server(host: &str, port: i64, id: &str) -> Value {
    Value::Array(vec![bulk(host), Value::Int(port), bulk(id)])
}

fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
    let hash_slots = [Value::Int(first), Value::Int(last)];
    Value::Array(hash_slots.into_iter().chain(servers).collect())
}

fn read(ranges: Vec<Value>) -> Result<HashSlotMap, HashSlotMapError> {
    HashSlotMap::parse(&Value::Array(ranges), "queried")
}

/// Two primaries, `a` and `b`, with a hole at the end.
fn two() -> HashSlotMap {
    let a = vec![server("10.0.0.1", 6379, "a"), server("10.0.0.3", 6379, "c")];
    let b = vec![server("10.0.0.2", 6379, "b"), server("10.0.0.3", 6379, "c")];
    let map = read(vec![range(0, 8_191, a.clone()), range(8_192, 16_000, b), range(16_001, 16_001, a)]);
    map.unwrap()
}

/// The name and address of the primary of a hash slot.
fn at(map: &HashSlotMap, hash_slot: u16) -> String {
    match map.owner(HashSlot(hash_slot)) {
        None => "nobody".to_owned(),
        Some(owner) => {
            let primary = &map.primaries[owner];
            format!("{} {}", primary.id, primary.address)
        }
    }
}

#[test]
fn each_hash_slot_has_its_primary_or_none() {
    let map = two();
    assert_eq!(at(&map, 0), "a 10.0.0.1:6379");
    assert_eq!(at(&map, 8_191), "a 10.0.0.1:6379");
    assert_eq!(at(&map, 8_192), "b 10.0.0.2:6379");
    assert_eq!(at(&map, 16_001), "a 10.0.0.1:6379");
    assert_eq!(at(&map, 16_002), "nobody");
    let replica = parse_address("10.0.0.3:6379", "queried").unwrap();
    assert_eq!(*map.replicas, [replica]);
}

#[test]
fn a_host_may_be_empty_or_a_name_or_an_ipv6_address() {
    let nil = Value::Array(vec![Value::Nil, Value::Int(1), bulk("b")]);
    let ip = Value::Array(vec![bulk("ip"), bulk("10.0.0.9")]);
    let unnamed = Value::Array(vec![bulk("?"), Value::Int(1), bulk("c"), ip.clone()]);
    let of_map = Value::Map(vec![(bulk("ip"), bulk("10.0.0.8"))]);
    let mapped = Value::Array(vec![bulk("?"), Value::Int(1), bulk("d"), of_map]);
    let named = Value::Array(vec![bulk("store-1.example"), Value::Int(1), bulk("e"), ip]);
    let map = read(vec![
        range(0, 0, vec![server("", 1, "a")]),
        range(1, 1, vec![nil]),
        range(2, 2, vec![unnamed]),
        range(3, 3, vec![mapped]),
        range(4, 4, vec![named]),
        range(5, 5, vec![server("fd00::7", 1, "f")]),
    ]);
    let map = map.unwrap();
    let all: Vec<_> = (0..6).map(|hash_slot| at(&map, hash_slot)).collect();
    assert_eq!(
        all,
        ["a queried:1", "b queried:1", "c 10.0.0.9:1", "d 10.0.0.8:1", "e store-1.example:1", "f [fd00::7]:1"]
    );
}

#[test]
fn hash_slots_without_a_reachable_primary_are_unowned() {
    let nowhere = server("?", 6379, "x");
    let no_port = server("10.0.0.1", 0, "y");
    let no_id = Value::Array(vec![bulk("10.0.0.1"), Value::Int(6379)]);
    let map = read(vec![
        range(0, 0, vec![]),
        range(1, 1, vec![nowhere]),
        range(2, 2, vec![no_port]),
        range(3, 3, vec![no_id]),
        range(4, 16_383, vec![server("10.0.0.1", 6379, "a")]),
    ]);
    let map = map.unwrap();
    assert!((0..4).all(|hash_slot| map.owner(HashSlot(hash_slot)).is_none()));
    assert_eq!(map.primaries.len(), 1);
    assert_eq!(at(&map, 16_383), "a 10.0.0.1:6379");
}

#[test]
fn a_reply_of_another_shape_is_no_map() {
    let a = || vec![server("10.0.0.1", 6379, "a")];
    for odd in [
        Value::Nil,
        Value::Int(1),
        Value::Array(vec![Value::Int(1)]),
        Value::Array(vec![Value::Array(vec![Value::Int(0)])]),
        Value::Array(vec![range(0, 16_384, a())]),
        Value::Array(vec![range(-1, 1, a())]),
        Value::Array(vec![range(2, 1, a())]),
    ] {
        assert_eq!(HashSlotMap::parse(&odd, "queried"), Err(HashSlotMapError::Shape), "{odd:?}");
    }
    assert_eq!(read(vec![]), Err(HashSlotMapError::Empty));
    assert_eq!(read(vec![range(0, 16_383, vec![])]), Err(HashSlotMapError::Empty));
}

#[test]
fn the_order_of_a_reply_does_not_matter() {
    let ranges = [range(0, 8_191, vec![server("h", 1, "b")]), range(8_192, 16_383, vec![server("h", 2, "a")])];
    let reversed = ranges.iter().rev().cloned().collect();
    let map = read(ranges.to_vec()).unwrap();
    assert_eq!(read(reversed), Ok(map));
}

#[test]
fn one_hash_slot_moves_to_a_known_primary() {
    let map = two();
    let b = parse_address("10.0.0.2:6379", "queried").unwrap();
    let moved = map.moved(HashSlot(7), &b).unwrap();
    assert_eq!(at(&moved, 7), "b 10.0.0.2:6379");
    assert_eq!(at(&moved, 8), "a 10.0.0.1:6379");
    let replica = parse_address("10.0.0.3:6379", "queried").unwrap();
    assert_eq!(map.moved(HashSlot(7), &replica), None);
    assert_eq!(map.moved(HashSlot(HASH_SLOTS), &b), None);
}

#[test]
fn the_address_of_a_redirect_is_parsed() {
    let read = |text| parse_address(text, "queried").map(|address| address.to_string());
    assert_eq!(read("10.0.0.1:6379").as_deref(), Some("10.0.0.1:6379"));
    assert_eq!(read(":6379").as_deref(), Some("queried:6379"));
    assert_eq!(read("fd00::7:6379").as_deref(), Some("[fd00::7]:6379"));
    assert_eq!(read("[fd00::7]:6379").as_deref(), Some("[fd00::7]:6379"));
    for odd in ["", "host", "host:", "host:0", "host:70000", "host:x"] {
        assert_eq!(read(odd), None, "{odd}");
    }
}

/// Nodes with the same map use the same register, and a hash slot that moves rarely changes it.
#[test]
fn the_hash_slot_of_a_register_rarely_changes() {
    let map = two();
    let b = parse_address("10.0.0.2:6379", "queried").unwrap();
    let first = map.register_hash_slot(0, &[]).unwrap();
    assert_eq!(map.owner(first), Some(0));
    let mut emptied = map.clone();
    let mut changes = 0;
    for hash_slot in (0..4_096).map(HashSlot) {
        let before = emptied.register_hash_slot(0, &[]);
        emptied = emptied.moved(hash_slot, &b).unwrap();
        let after = emptied.register_hash_slot(0, &[]);
        assert!(after.is_some_and(|hash_slot| emptied.owner(hash_slot) == Some(0)));
        changes += u32::from(before != after);
    }
    assert!(changes < 8, "{changes} changes");
    let second = map.register_hash_slot(0, &[first]);
    assert!(second.is_some() && second != Some(first));
    assert_ne!(first, map.register_hash_slot(1, &[]).unwrap());
    assert_eq!(map.register_hash_slot(2, &[]), None);
}
