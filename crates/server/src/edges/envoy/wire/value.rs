//! The value of an entry as text, whatever its bytes.
//!
//! A client may send a header that is not UTF-8, and its limit applies all the same. Invariant: two values that differ
//! yield two texts that differ, so no client is counted as another one. Text is borrowed unchanged. A byte that is not
//! UTF-8 becomes a character reserved for it, and text that contains one of those already is decoded byte by byte.

use std::borrow::Cow;

/// The reserved characters, one for each byte from 0x80: the last ones of the private use area. A byte that is not
/// UTF-8 is never smaller.
const ESCAPE_BASE: u32 = 0x10_ff00;

/// The first byte of all of them, and of few other characters.
const ESCAPE_FIRST_BYTE: u8 = 0xf4;

pub(in super::super) fn decode(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&ESCAPE_FIRST_BYTE) => text.into(),
        _ => escape(bytes).into(),
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if is_escape_char(letter) {
                out.extend(letter.encode_utf8(&mut [0; 4]).bytes().map(escape_byte));
            } else {
                out.push(letter);
            }
        }
        out.extend(chunk.invalid().iter().copied().map(escape_byte));
    }
    out
}

fn is_escape_char(letter: char) -> bool {
    u32::from(letter) >= ESCAPE_BASE + 0x80
}

fn escape_byte(byte: u8) -> char {
    char::from_u32(ESCAPE_BASE + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The bytes of a decoded value.
    pub(in super::super::super) fn encode(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for letter in text.chars() {
            if is_escape_char(letter) {
                bytes.push(u32::from(letter) as u8);
            } else {
                bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
            }
        }
        bytes
    }

    #[test]
    fn text_is_unchanged() {
        for text in ["", "ada", "überall", "\u{fffd}", "\u{10ff7f}", "\u{100000}"] {
            assert_eq!(decode(text.as_bytes()), text);
        }
        assert!(matches!(decode(b"ada"), Cow::Borrowed(_)));
    }

    /// Replaced by the same character, all of these would share a limit.
    #[test]
    fn different_values_are_different_texts() {
        const PARTS: [&[u8]; 9] = [
            b"a",
            b"\xff",
            b"\xfe",
            b"\xf4",
            b"\x8f\xbe\x80",
            b"\x80",
            "\u{10ff80}".as_bytes(),
            "\u{10ffff}".as_bytes(),
            "\u{fffd}".as_bytes(),
        ];
        let mut values: Vec<Vec<u8>> = vec![vec![]];
        for _ in 0..4 {
            let longer = |value: &Vec<u8>| PARTS.map(|part| [value, part].concat());
            values.extend(values.clone().iter().flat_map(longer));
        }
        let mut seen: HashMap<String, Vec<u8>> = HashMap::new();
        for value in values {
            let text = decode(&value).into_owned();
            assert_eq!(encode(&text), value);
            let known = seen.entry(text).or_insert_with(|| value.clone());
            assert_eq!(*known, value);
        }
    }
}
