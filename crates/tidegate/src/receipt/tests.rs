//! A sealed receipt can be opened, and no other text is accepted as one.

use super::*;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

fn receipt() -> Receipt {
    Receipt {
        kind: ReceiptKind::Charge,
        id: 42,
        charged: Nanos::from_secs(1),
        until: Nanos::from_secs(61),
        units: Vec::new(),
        charges: vec![ReceiptCharge {
            rule: "search".into(),
            rate: 1,
            tag: 7,
            subject: Fingerprint::new(99),
            cost: Cost::ONE,
            run: RunId::new(5),
        }],
    }
}

#[test]
fn a_sealed_receipt_can_be_opened() {
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let text = receipt().seal(&secret);
    assert_eq!(Receipt::open(&text, ReceiptKind::Charge, &secret), Ok(receipt()));
}

#[test]
fn a_receipt_of_one_kind_is_not_accepted_as_the_other() {
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    for (kind, other) in
        [(ReceiptKind::Charge, ReceiptKind::Reservation), (ReceiptKind::Reservation, ReceiptKind::Charge)]
    {
        let text = Receipt { kind, ..receipt() }.seal(&secret);
        assert!(Receipt::open(&text, kind, &secret).is_ok());
        let opened = Receipt::open(&text, other, &secret);
        assert_eq!(opened, Err(ReceiptError::Forged));
    }
}

#[test]
fn no_digit_can_be_changed_and_none_left_out() {
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let text = receipt().seal(&secret);
    for at in 0..text.len() {
        let mut altered = text.clone().into_bytes();
        altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
        let altered = String::from_utf8(altered).unwrap();
        assert_eq!(Receipt::open(&altered, ReceiptKind::Charge, &secret), Err(ReceiptError::Forged));
        assert_eq!(Receipt::open(&text[..at], ReceiptKind::Charge, &secret), Err(ReceiptError::Forged));
    }
}

/// Even if the seal were broken, no payload can do harm.
#[test]
fn no_payload_panics_or_takes_long() {
    let good: Vec<Vec<u8>> = [ReceiptKind::Charge, ReceiptKind::Reservation]
        .into_iter()
        .map(|kind| {
            let units = match kind {
                ReceiptKind::Charge => Vec::new(),
                ReceiptKind::Reservation => vec!["tokens".to_owned(), "calls".to_owned()],
            };
            let receipt = receipt();
            Receipt { kind, units, ..receipt }.payload()
        })
        .collect();
    let attack = FuzzTarget {
        parser: "receipts",
        seed: 0x5ea1,
        inputs: inputs::RECEIPTS,
        corpus: &[&good[0], &good[1]],
        tokens: &[b"\0", b"\x01", b"\x02", b"\xff", b"\0\x06", b"search"],
        delimiters: &[(b"\0\x01", b"a")],
        numbers: NumberEncoding::Digits,
        max_len: 4_000,
    };
    let read = |payload: &[u8]| {
        let kinds = [ReceiptKind::Charge, ReceiptKind::Reservation].into_iter();
        kinds.filter_map(|kind| Receipt::read(payload, kind)).next()
    };
    let outcome = attack.run(
        |payload| read(payload).is_some(),
        |payload| assert_eq!(read(payload).map(|r| r.payload()).as_deref(), Some(payload)),
    );
    println!("{outcome:?}");
}

#[test]
fn invalid_text_is_rejected() {
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    for text in ["", "0", "zz", "é", "00", &"0".repeat(300_000)] {
        assert_eq!(Receipt::open(text, ReceiptKind::Charge, &secret), Err(ReceiptError::Forged));
    }
}
