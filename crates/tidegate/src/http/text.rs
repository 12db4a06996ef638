//! Numbers, JSON strings and structured-field strings, written straight into a buffer.

use tidegate_core::units::Nanos;

/// Structured fields have integers of at most 15 digits.
const MOST_SF_INTEGER: u64 = 999_999_999_999_999;

/// Text as it is. What is around a value comes in one piece, which costs a few moves and no call.
#[inline(always)]
pub(super) fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    match u8::try_from(value) {
        // A zero or a one is what most answers have somewhere.
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        _ => put(out, itoa::Buffer::new().format(value)),
    }
}

pub(super) fn sf_integer(out: &mut Vec<u8>, value: u64) {
    number(out, value.min(MOST_SF_INTEGER));
}

/// The inside of a structured-field string: printable ASCII. What is not becomes `?`.
pub(super) fn sf_text(out: &mut Vec<u8>, text: &str) {
    escaped(out, text, &SF_SPECIAL, |out, byte| match byte {
        b'"' | b'\\' => out.extend([b'\\', byte]),
        _ => out.push(b'?'),
    });
}

/// The inside of a JSON string.
pub(super) fn json_text(out: &mut Vec<u8>, text: &str) {
    escaped(out, text, &JSON_SPECIAL, |out, byte| match byte {
        b'"' | b'\\' => out.extend([b'\\', byte]),
        control => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            put(out, "\\u00");
            out.push(DIGITS[usize::from(control >> 4)]);
            out.push(DIGITS[usize::from(control & 15)]);
        }
    });
}

/// A JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    json_text(out, text);
    out.push(b'"');
}

/// For each byte whether it cannot stand as it is.
type Special = [bool; 256];

static JSON_SPECIAL: Special = special(0x20, 0xff);
static SF_SPECIAL: Special = special(b' ', b'~');

/// Quotes, backslashes, and what is not `first..=last`.
const fn special(first: u8, last: u8) -> Special {
    let (mut special, mut byte) = ([false; 256], 0);
    while byte < 256 {
        let outside = byte < first as usize || byte > last as usize;
        special[byte] = outside || byte == b'"' as usize || byte == b'\\' as usize;
        byte += 1;
    }
    special
}

/// Runs of plain bytes are copied whole, special ones go through `escape`.
#[inline(always)]
fn escaped(out: &mut Vec<u8>, text: &str, special: &Special, escape: impl Fn(&mut Vec<u8>, u8)) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| special[usize::from(*byte)]) {
        out.extend_from_slice(&rest[..at]);
        escape(out, rest[at]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// A span as a rules file writes it: the largest unit that divides it.
pub(super) fn span(out: &mut Vec<u8>, length: Nanos) {
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
    let (count, unit) = match UNITS.iter().find(fits) {
        Some((unit, name)) => (nanos / unit, *name),
        None => (0, "s"),
    };
    number(out, count);
    put(out, unit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
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
    fn numbers_have_all_their_digits() {
        for value in [0, 9, 10, 255, 256, 257, u64::MAX] {
            assert_eq!(written(|out| number(out, value)), value.to_string());
        }
        assert_eq!(
            written(|out| sf_integer(out, u64::MAX)),
            MOST_SF_INTEGER.to_string()
        );
    }

    #[test]
    fn structured_strings_are_printable_ascii() {
        assert_eq!(written(|out| sf_text(out, "a\"\\é\u{7f}")), r#"a\"\\???"#);
    }

    #[test]
    fn spans_use_the_largest_unit_that_divides_them() {
        let cases = [
            (0, "0s"),
            (60_000, "1m"),
            (90_000, "90s"),
            (1_500, "1500ms"),
            (604_800_000, "7d"),
        ];
        for (millis, want) in cases {
            assert_eq!(written(|out| span(out, Nanos::from_millis(millis))), want);
        }
    }
}
