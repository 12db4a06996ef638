//! Hostile messages: for any bytes, fields lie inside them, and decoded fields survive encoding and decoding.

use super::super::*;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

/// Every kind of field, and nested messages.
const GOOD: &[&[u8]] = &[
    b"\x08\x96\x01",
    b"\x0a\x04shop\x12\x08\x0a\x06\x0a\x01a\x12\x01b",
    b"\x09\x00\x00\x00\x00\x00\x00\xf8\xbf\x15\x01\x02\x03\x04",
    b"\xfa\xff\xff\xff\x0f\x00\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x12\x0f\x12\x0d\x12\x0b\x12\x09\x12\x07\x12\x05\x12\x03\x12\x01\x08",
    b"",
];
const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\x80",
    b"\xff",
    b"\x0a",
    b"\x0b",
    b"\x0c",
    b"\x0d",
    b"\x7f",
    b"\x12\x80\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
];

/// Collects the fields of the message and of everything in it that parses as a message.
fn walk<'a>(fields: ProtobufFields<'a>, found: &mut Vec<ProtobufField<'a>>) -> Result<(), ProtobufError> {
    for field in fields {
        let field = field?;
        found.push(field);
        // Bytes may be text or a message. Bytes that are not a message are no error here.
        if let Ok(inner) = field.message() {
            let _ = walk(inner, found);
        }
    }
    Ok(())
}

fn reencode(fields: ProtobufFields<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = ProtobufWriter::to(&mut out);
    for field in fields.map(Result::unwrap) {
        match field.value {
            ProtobufValue::Varint(number) => writer.uint(field.number, number),
            ProtobufValue::Fixed64(bits) => writer.double(field.number, f64::from_bits(bits)),
            ProtobufValue::Bytes(bytes) => writer.bytes(field.number, bytes),
            // The writer has no method for it.
            ProtobufValue::Fixed32(_) => {}
        }
    }
    out
}

#[test]
fn no_message_panics_is_slow_or_changes_in_reencoding() {
    let attack = FuzzTarget {
        parser: "protobuf",
        seed: 0x7062,
        inputs: inputs::PROTOBUF,
        corpus: GOOD,
        tokens: TOKENS,
        delimiters: &[],
        numbers: NumberEncoding::Varint,
        max_len: 2_000,
    };
    let accepts = |message: &[u8]| {
        let mut found = Vec::new();
        let read = walk(ProtobufFields::of(message), &mut found);
        for field in &found {
            if let Ok(bytes) = field.bytes() {
                assert!(message.as_ptr_range().contains(&bytes.as_ptr()) || bytes.is_empty());
                assert!(bytes.len() < message.len());
            }
            let _ = (field.text(), field.uint32(), field.bool(), field.double());
        }
        read.is_ok()
    };
    attack.run(accepts, |message| {
        let written = reencode(ProtobufFields::of(message));
        let fixed32 = |field: &ProtobufField<'_>| matches!(field.value, ProtobufValue::Fixed32(_));
        let read = ProtobufFields::of(message).map(Result::unwrap);
        let read: Vec<_> = read.filter(|field| !fixed32(field)).collect();
        let again: Vec<_> = ProtobufFields::of(&written).map(Result::unwrap).collect();
        // Compares bits, because NaN is not equal to itself.
        let bits = |fields: &[ProtobufField<'_>]| {
            let bits = fields.iter().map(|field| match field.value {
                ProtobufValue::Fixed64(bits) => format!("{}: {bits:x}", field.number),
                value => format!("{}: {value:?}", field.number),
            });
            bits.collect::<Vec<_>>()
        };
        assert_eq!(bits(&read), bits(&again));
    });
}
