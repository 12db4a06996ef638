//! Numbers, JSON strings and structured-field strings, written straight into a buffer.

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};
use tidegate_core::units::Nanos;

/// Structured fields have integers of at most 15 digits.
const MOST_SF_INTEGER: u64 = 999_999_999_999_999;

pub(super) fn number(out: &mut BytesMut, value: u64) {
    out.put_slice(itoa::Buffer::new().format(value).as_bytes());
}

pub(super) fn sf_integer(out: &mut BytesMut, value: u64) {
    number(out, value.min(MOST_SF_INTEGER));
}

/// A structured-field string: printable ASCII in quotes. What is not becomes `?`.
pub(super) fn sf_string(out: &mut BytesMut, parts: &[Cow<'_, str>]) {
    out.put_u8(b'"');
    for byte in parts.iter().flat_map(|part| part.bytes()) {
        match byte {
            b'"' | b'\\' => out.put_slice(&[b'\\', byte]),
            b' '..=b'~' => out.put_u8(byte),
            _ => out.put_u8(b'?'),
        }
    }
    out.put_u8(b'"');
}

/// A JSON string.
pub(super) fn json_string(out: &mut BytesMut, value: &str) {
    out.put_u8(b'"');
    let plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | 0..=0x1f);
    let mut rest = value.as_bytes();
    loop {
        let clean = rest.iter().take_while(|byte| plain(byte)).count();
        let (taken, left) = rest.split_at(clean);
        out.put_slice(taken);
        let Some((special, left)) = left.split_first() else {
            break;
        };
        match special {
            b'"' | b'\\' => out.put_slice(&[b'\\', *special]),
            control => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                out.put_slice(b"\\u00");
                out.put_u8(DIGITS[usize::from(control >> 4)]);
                out.put_u8(DIGITS[usize::from(control & 15)]);
            }
        }
        rest = left;
    }
    out.put_u8(b'"');
}

/// `,"name":`
pub(super) fn json_name(out: &mut BytesMut, name: &str) {
    out.put_slice(b",\"");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\":");
}

/// A span as a rules file writes it: the largest unit that divides it.
pub(super) fn span(length: Nanos) -> String {
    const UNITS: [(u64, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let nanos = length.get();
    let fits = |unit: &&(u64, &str)| nanos >= unit.0 && nanos.is_multiple_of(unit.0);
    match UNITS.iter().find(fits) {
        Some((unit, name)) => format!("{}{name}", nanos / unit),
        None => "0s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn json_strings_are_what_serde_would_write() {
        for text in [
            "",
            "plain",
            "a\"b\\c",
            "line\nfeed\r\0\u{1b}",
            "ünïcode",
            "\u{202e}",
        ] {
            let ours = written(|out| json_string(out, text));
            let back: String = serde_json::from_str(&ours).unwrap();
            assert_eq!(back, text);
        }
    }

    #[test]
    fn structured_strings_are_printable_ascii() {
        assert_eq!(
            written(|out| sf_string(out, &["a\"\\".into(), "é".into()])),
            r#""a\"\\??""#
        );
    }

    #[test]
    fn spans_use_the_largest_unit_that_divides_them() {
        let cases = [
            (60_000, "1m"),
            (90_000, "90s"),
            (1_500, "1500ms"),
            (604_800_000, "7d"),
        ];
        for (millis, want) in cases {
            assert_eq!(span(Nanos::from_millis(millis)), want);
        }
    }
}
