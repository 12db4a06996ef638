//! Computes the hash slot of a key.
//!
//! A hash slot is the CRC16 of the part of a key in braces, if it has one, else of the whole key. Knows nothing of
//! the servers of a cluster.

use std::sync::LazyLock;

use tidegate_core::store::HashSlot;
use tidegate_core::subject::Fingerprint;

use crate::stores::redis::plan::base64url;

/// The number of hash slots of any cluster.
pub(in crate::stores::redis) const HASH_SLOTS: u16 = 16_384;

/// The hash slot of a key.
pub(in crate::stores::redis) fn hash_slot_of(key: &[u8]) -> HashSlot {
    HashSlot(crc16(tag(key).unwrap_or(key)) % HASH_SLOTS)
}

/// The hash slot of all counters of a subject.
pub(in crate::stores::redis) fn hash_slot_of_subject(subject: Fingerprint) -> HashSlot {
    HashSlot(crc16(&base64url(subject.bits())) % HASH_SLOTS)
}

/// The common hash slot of several keys; none if they are in several hash slots, or there are no keys.
pub(in crate::stores::redis) fn common_hash_slot(keys: &[Vec<u8>]) -> Option<HashSlot> {
    let (first, rest) = keys.split_first()?;
    let hash_slot = hash_slot_of(first);
    rest.iter().all(|key| hash_slot_of(key) == hash_slot).then_some(hash_slot)
}

/// For each hash slot, the first number whose text is in it. Finding all takes 315,000 texts, so they are computed
/// once, and not while a caller waits for a decision.
pub(super) static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![None; usize::from(HASH_SLOTS)];
    let mut missing = tags.len();
    for number in 0_u32.. {
        let hash_slot = crc16(text_of(number).as_bytes()) % HASH_SLOTS;
        let tag = &mut tags[usize::from(hash_slot)];
        if tag.is_none() {
            *tag = Some(number);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
});

fn text_of(number: u32) -> String {
    format!("{number:x}")
}

/// A short hash tag whose hash slot is `hash_slot`, to place a key there.
pub(in crate::stores::redis) fn tag_for(hash_slot: HashSlot) -> String {
    text_of(TAGS.get(usize::from(hash_slot.0)).copied().unwrap_or_default())
}

/// The text between the first `{` and the first `}` after it, unless it is empty.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let after = &key[open + 1..];
    let len = after.iter().position(|byte| *byte == b'}')?;
    (len > 0).then(|| &after[..len])
}

/// CRC16/XMODEM: polynomial 0x1021, initial value 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC_TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::plan::key;
    use tidegate_testkit::TestRedis;

    #[test]
    fn hash_slots_are_those_of_a_real_server() {
        let server = TestRedis::start(tidegate_testkit::RedisProgram::Redis7, &["--cluster-enabled", "yes"]);
        let subject = Fingerprint::new(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let record = String::from_utf8(key(subject, ":", "a rule {of} braces")).unwrap();
        let keys =
            ["tg:ctl:secret", "06S", "", "{", "}", "{}", "{}{a}", "a{b", "a}b{c", "{{a}}", "x{tag}y{other}", &record];
        for key in keys {
            let theirs = server.run_command(&["CLUSTER", "KEYSLOT", key]);
            assert_eq!(hash_slot_of(key.as_bytes()).0.to_string(), theirs, "{key}");
        }
        assert_eq!(hash_slot_of(record.as_bytes()), hash_slot_of_subject(subject));
    }

    #[test]
    fn every_hash_slot_has_a_tag() {
        let mut found = vec![false; usize::from(HASH_SLOTS)];
        for number in 0_u32..1 << 20 {
            found[usize::from(hash_slot_of(format!("{number:x}").as_bytes()).0)] = true;
        }
        assert!(found.iter().all(|found| *found));
        for hash_slot in (0..HASH_SLOTS).step_by(1_000).map(HashSlot) {
            let key = format!("tg:ctl:{{{}}}:nodes", tag_for(hash_slot));
            assert_eq!(hash_slot_of(key.as_bytes()), hash_slot);
        }
    }

    #[test]
    fn keys_of_several_hash_slots_have_none_in_common() {
        let keys = |keys: &[&str]| -> Vec<Vec<u8>> { keys.iter().map(|key| key.as_bytes().to_vec()).collect() };
        let tag = Some(hash_slot_of(b"a"));
        assert_eq!(common_hash_slot(&keys(&["{a}:1", "x{a}", "a"])), tag);
        assert_eq!(common_hash_slot(&keys(&["{a}:1", "{b}:1"])), None);
        assert_eq!(common_hash_slot(&[]), None);
    }
}
