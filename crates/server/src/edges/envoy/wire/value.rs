//! The value of an entry as text, whatever its bytes.
//!
//! A client may send a header that is not UTF-8, and it has a limit all the same. Kept true: two values
//! that differ are read as two texts, so nobody is counted as somebody else. Text is read as it is and
//! copied nowhere; a byte that is none becomes a character set aside for it, and text that has one of
//! those already is read as its bytes.

use std::borrow::Cow;

/// The characters set aside, one for each byte from 0x80: the last of those for private use. What is
/// not UTF-8 is never a smaller byte.
const ESCAPE_BASE: u32 = 0x10_ff00;

/// How all of them begin, and few others.
const ESCAPE_FIRST_BYTE: u8 = 0xf4;

/// Reads a value.
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
            match is_escape_char(letter) {
                true => out.extend(letter.encode_utf8(&mut [0; 4]).bytes().map(escape_byte)),
                false => out.push(letter),
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

    /// The bytes of a value that was read.
    pub(in super::super::super) fn encode(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for letter in text.chars() {
            match is_escape_char(letter) {
                true => bytes.push(u32::from(letter) as u8),
                false => bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        bytes
    }

    #[test]
    fn text_is_read_as_it_is() {
        for text in ["", "ada", "überall", "\u{fffd}", "\u{10ff7f}", "\u{100000}"] {
            assert_eq!(decode(text.as_bytes()), text);
        }
        assert!(matches!(decode(b"ada"), Cow::Borrowed(_)));
    }

    /// Replaced by one and the same character, all of these would share a limit.
    #[test]
    fn two_values_are_two_texts() {
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
