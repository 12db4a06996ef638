use super::*;
use crate::edges::envoy::messages;
use prost::Message;
use tidegate_core::units::Nanos;
use tidegate_rules::envoy::Unit;

fn encode_and_decode(status: &Status<'_>) -> messages::DescriptorStatus {
    let mut out = Vec::new();
    write_status(status, &mut ProtobufWriter::to(&mut out));
    messages::DescriptorStatus::decode(&*out).unwrap()
}

#[test]
fn another_decoder_reads_the_same_status() {
    let full = Status {
        over_limit: true,
        limit: Some(StatusLimit { requests: 300, unit: Some(Unit::Week), name: Some("weekly") }),
        reset_after: Some(Nanos::from_millis(1_200)),
        ..Status::NO_LIMIT
    };
    let decoded = encode_and_decode(&full);
    assert_eq!(decoded.code, 2);
    let limit = decoded.current_limit.unwrap();
    let limit = (limit.requests_per_unit, limit.unit, &*limit.name);
    assert_eq!(limit, (300, 7, "weekly"));
    let reset = decoded.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (2, 0), "whole seconds, rounded up");
    let free = Status { over_limit: false, limit: None, remaining: u32::MAX, reset_after: None, ..full };
    let decoded = encode_and_decode(&free);
    assert_eq!((decoded.code, decoded.limit_remaining), (1, u32::MAX));
    assert!(decoded.current_limit.is_none() && decoded.duration_until_reset.is_none());
}

#[test]
fn another_decoder_reads_the_same_metadata() {
    let text = |text: &str| Metadata::Text(text.into());
    let fields = [
        ("nothing".into(), Metadata::Null),
        ("yes".into(), Metadata::Bool(true)),
        ("no".into(), Metadata::Bool(false)),
        ("zero".into(), Metadata::Number(0.0)),
        ("half".into(), Metadata::Number(0.5)),
        ("empty".into(), text("")),
        ("list".into(), Metadata::List(vec![text("a"), Metadata::Map(vec![])])),
        ("long".into(), Metadata::Map(vec![("x".into(), text(&"y".repeat(500)))])),
    ];
    let mut out = Vec::new();
    write_fields(&fields, &mut ProtobufWriter::to(&mut out));
    let decoded = messages::ProtoStruct::decode(&*out).unwrap().json();
    let want = serde_json::json!({
        "nothing": null, "yes": true, "no": false, "zero": 0.0, "half": 0.5, "empty": "",
        "list": ["a", {}], "long": {"x": "y".repeat(500)},
    });
    assert_eq!(decoded, want);
}
