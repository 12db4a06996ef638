//! Bytes as hex digits and back.

/// Two lower-case digits for each byte.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}

/// The bytes of hex digits of either case, if they fill `bytes`. Whether all were digits is checked once, at the end: a
/// branch per digit is mispredicted half of the time, and a file may have a million lines.
pub(crate) fn decode_into(hex: &[u8], bytes: &mut [u8]) -> Option<()> {
    let (pairs, rest) = hex.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    let mut seen = 0;
    for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
        let (high, low) = (NIBBLES[usize::from(high)], NIBBLES[usize::from(low)]);
        *byte = high << 4 | low & 0xf;
        seen |= high | low;
    }
    (seen < NOT_HEX).then_some(())
}

/// Marks characters that are not hex digits: above every nibble.
const NOT_HEX: u8 = 0x10;

/// The value of each character as a hex digit.
const NIBBLES: [u8; 256] = {
    let mut nibbles = [NOT_HEX; 256];
    let mut value = 0;
    while value < 16 {
        nibbles[b"0123456789abcdef"[value as usize] as usize] = value;
        nibbles[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    nibbles
};
