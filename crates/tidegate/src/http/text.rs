//! Numbers, JSON strings and structured-field strings, written straight into a buffer.

use tidegate_core::units::Nanos;

/// Structured fields have integers of at most 15 digits.
const MAX_SF_INTEGER: u64 = 999_999_999_999_999;

/// Appends text unchanged. The text around a value comes in one piece, which costs a few moves and no call.
#[inline(always)]
pub(super) fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// One part of a text that is written in one go.
pub(super) trait TextPart {
    fn append_to(self, out: &mut Vec<u8>);
}

/// Unchanged.
impl TextPart for &str {
    #[inline(always)]
    fn append_to(self, out: &mut Vec<u8>) {
        put(out, self);
    }
}

impl TextPart for u64 {
    #[inline(always)]
    fn append_to(self, out: &mut Vec<u8>) {
        number(out, self);
    }
}

impl TextPart for u32 {
    #[inline(always)]
    fn append_to(self, out: &mut Vec<u8>) {
        number(out, u64::from(self));
    }
}

/// The inside of a JSON string.
pub(super) struct JsonText<'a>(pub(super) &'a str);

impl TextPart for JsonText<'_> {
    #[inline(always)]
    fn append_to(self, out: &mut Vec<u8>) {
        json_text(out, self.0);
    }
}

/// Appends parts, in order.
macro_rules! append {
    ($out:expr, $($part:expr),+ $(,)?) => { $($crate::http::text::TextPart::append_to($part, $out);)+ };
}

pub(super) use append;

pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    match u8::try_from(value) {
        // Most responses contain a zero or a one.
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        _ => put(out, itoa::Buffer::new().format(value)),
    }
}

pub(super) fn sf_integer(out: &mut Vec<u8>, value: u64) {
    number(out, value.min(MAX_SF_INTEGER));
}

/// The inside of a structured-field string: printable ASCII. Any other byte becomes `?`.
pub(super) fn sf_text(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.as_bytes().iter().all(plain) {
        return put(out, text);
    }
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => out.push(b'?'),
        }
    }
}

/// The inside of a JSON string.
pub(super) fn json_text(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    loop {
        let (plain, from_special) = rest.split_at(json_plain(rest));
        out.extend_from_slice(plain);
        let Some((special, left)) = from_special.split_first() else {
            break;
        };
        match special {
            b'"' | b'\\' => out.extend([b'\\', *special]),
            control => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                put(out, "\\u00");
                out.push(DIGITS[usize::from(control >> 4)]);
                out.push(DIGITS[usize::from(control & 15)]);
            }
        }
        rest = left;
    }
}

/// The number of leading bytes that need no escape in a JSON string: all up to the first quote, backslash or control
/// character. Eight are examined at a time.
#[inline]
pub fn json_plain(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks();
    for (i, word) in words.iter().enumerate() {
        let special = json_special(*word);
        if special != 0 {
            return i * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    bytes.len() - rest.len() + json_plain_rest(rest)
}

/// The same for fewer than eight bytes. A separate function, so that the caller, which seldom gets here, stays small.
#[inline(never)]
fn json_plain_rest(rest: &[u8]) -> usize {
    let mut word = [b' '; 8];
    word[..rest.len()].copy_from_slice(rest);
    let plain = json_special(word).trailing_zeros() as usize / 8;
    plain.min(rest.len())
}

/// The high bit of the first byte that needs an escape in a JSON string. Bits of later bytes are undefined: the
/// subtraction may have borrowed from them.
#[inline(always)]
fn json_special(bytes: [u8; 8]) -> u64 {
    const EACH: u64 = u64::MAX / 255;
    let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound) & !word & (EACH << 7);
    let word = u64::from_le_bytes(bytes);
    let quote = below(word ^ (EACH * u64::from(b'"')), 1);
    let backslash = below(word ^ (EACH * u64::from(b'\\')), 1);
    below(word, 0x20) | quote | backslash
}

/// A JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    json_text(out, text);
    out.push(b'"');
}

/// A span in the syntax of rules files: the largest unit that divides it.
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

/// A wait in words: `400 ms`, `12 s`, `1 min 2 s`, `20 h 17 min`, `3 d 4 h`. At most two units, rounded up: the
/// wait is never reported too short.
pub(super) fn wait(out: &mut Vec<u8>, wait: Nanos) {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let millis = wait.millis_up();
    if millis < 1_000 {
        return quantity(out, millis, " ms");
    }
    // Counts in the smaller unit first, so that rounding up carries: 3,599.5 s are an hour.
    let secs = wait.secs_up();
    let (large, large_unit, small, small_unit) = match secs {
        ..MINUTE => return quantity(out, secs, " s"),
        MINUTE..HOUR => (secs / MINUTE, " min", secs % MINUTE, " s"),
        HOUR..DAY => {
            let minutes = secs.div_ceil(MINUTE);
            (minutes / 60, " h", minutes % 60, " min")
        }
        _ => {
            let hours = secs.div_ceil(HOUR);
            (hours / 24, " d", hours % 24, " h")
        }
    };
    quantity(out, large, large_unit);
    if small > 0 {
        put(out, " ");
        quantity(out, small, small_unit);
    }
}

fn quantity(out: &mut Vec<u8>, count: u64, unit: &str) {
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
    fn json_strings_can_be_read_back_by_serde() {
        for text in ["", "plain", "a\"b\\c", "line\nfeed\r\0\u{1b}", "ünïcode", "\u{202e}"] {
            let ours = written(|out| json_string(out, text));
            let back: String = serde_json::from_str(&ours).unwrap();
            assert_eq!(back, text);
        }
    }

    #[test]
    fn plain_text_ends_at_the_first_special_byte() {
        for length in 0..40 {
            for special in (0..0x20).chain([b'"', b'\\', 0x7f, 0x80, 0xff]) {
                let mut text = vec![0xa2; length]; // a quote with its high bit set
                text.push(special);
                text.extend(b"!\"#[]\\ ");
                let want = match special {
                    0x7f.. => length + 2,
                    _ => length,
                };
                assert_eq!(json_plain(&text), want, "{length} {special}");
                assert_eq!(json_plain(&text[..length]), length);
            }
        }
    }

    #[test]
    fn numbers_have_all_their_digits() {
        for value in [0, 9, 10, 255, 256, 257, u64::MAX] {
            assert_eq!(written(|out| number(out, value)), value.to_string());
        }
        assert_eq!(written(|out| sf_integer(out, u64::MAX)), MAX_SF_INTEGER.to_string());
    }

    #[test]
    fn structured_strings_are_printable_ascii() {
        assert_eq!(written(|out| sf_text(out, "a\"\\é\u{7f}")), r#"a\"\\???"#);
    }

    #[test]
    fn waits_have_at_most_two_units_and_are_never_too_short() {
        let cases = [
            (0, "0 ms"),
            (400, "400 ms"),
            (1_000, "1 s"),
            (59_001, "1 min"),
            (62_000, "1 min 2 s"),
            (3_599_500, "1 h"),
            (73_013_000, "20 h 17 min"),
            (86_399_000, "24 h"),
            (86_400_000, "1 d"),
            (273_600_001, "3 d 5 h"),
        ];
        for (millis, want) in cases {
            assert_eq!(written(|out| wait(out, Nanos::from_millis(millis))), want);
        }
    }

    #[test]
    fn spans_use_the_largest_unit_that_divides_them() {
        let cases = [(0, "0s"), (60_000, "1m"), (90_000, "90s"), (1_500, "1500ms"), (604_800_000, "7d")];
        for (millis, want) in cases {
            assert_eq!(written(|out| span(out, Nanos::from_millis(millis))), want);
        }
    }
}
