//! Mutations of an input, one at a time.

use std::ops::Range;

use crate::{FuzzRng, FuzzTarget, NumberEncoding};

/// Numbers at which arithmetic overflows, as decimal digits.
const EDGE_NUMBERS: [&str; 26] = [
    "0",
    "-0",
    "1",
    "-1",
    "00",
    "07",
    "127",
    "128",
    "255",
    "256",
    "32768",
    "65535",
    "65536",
    "65537",
    "2147483647",
    "2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "99999999999999999999999999999999999999999",
];

/// Counts for repetition and nesting: a few, and more than a parser may expect.
const TIMES: [usize; 6] = [1, 2, 7, 33, 101, 1000];

/// Applies one mutation to `input`. The result may be a multiple of its length; the caller truncates it.
pub(crate) fn mutate(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    match rng.below(10) {
        0 => flip(rng, input),
        1 => set(target, rng, input),
        2 => insert(target, rng, input),
        3 => cut(rng, input),
        4 => _ = input.drain(rng.subrange(input.len(), 16)),
        5 => repeat(target, rng, input),
        6 => splice(target, rng, input),
        7 => swap(rng, input),
        8 => to_edge_number(target.numbers, rng, input),
        _ => nest(target, rng, input),
    }
}

fn flip(rng: &mut FuzzRng, input: &mut [u8]) {
    let at = rng.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

fn set(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let range = rng.subrange(input.len(), 4);
    let token = rng.pick(target.tokens);
    input.splice(range, token.iter().copied());
}

fn insert(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let at = rng.below(input.len() + 1);
    let token = rng.pick(target.tokens);
    input.splice(at..at, token.iter().copied());
}

fn cut(rng: &mut FuzzRng, input: &mut Vec<u8>) {
    // Rarely: an input that is cut near its beginning tests little.
    match rng.below(3) {
        0 => input.truncate(rng.below(input.len() + 1)),
        _ => input.truncate(input.len() - rng.below(input.len().min(8))),
    }
}

fn repeat(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let range = rng.subrange(input.len(), 64);
    let room = target.max_len / range.len().max(1);
    let copies = input[range.clone()].repeat(times(rng).min(room));
    input.splice(range.end..range.end, copies);
}

fn splice(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let other = rng.pick(target.corpus);
    input.truncate(rng.below(input.len() + 1));
    input.extend_from_slice(&other[rng.below(other.len() + 1)..]);
}

/// Swaps two words.
fn swap(rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let (one, other) = (word(rng, input), word(rng, input));
    let (first, second) = if one.start <= other.start { (one, other) } else { (other, one) };
    if first.end <= second.start {
        let last = input[second.clone()].to_vec();
        let moved = input[first.clone()].to_vec();
        input.splice(second, moved);
        input.splice(first, last);
    }
}

/// Replaces a number by one at which arithmetic overflows. If the number is a length, it becomes wrong.
fn to_edge_number(numbers: NumberEncoding, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    match numbers {
        NumberEncoding::Digits => {
            let from = rng.below(input.len() + 1);
            let digits = run(input, from, |byte| byte.is_ascii_digit());
            let edge = EDGE_NUMBERS[rng.below(EDGE_NUMBERS.len())];
            input.splice(digits, edge.bytes());
        }
        NumberEncoding::Varint => {
            let at = rng.subrange(input.len(), 1);
            let edge = 1_u64.checked_shl(rng.below(65) as u32).unwrap_or(0).wrapping_sub(rng.below(2) as u64);
            input.splice(at, varint(edge));
        }
    }
}

/// Nests a part of the input within itself.
fn nest(target: &FuzzTarget<'_>, rng: &mut FuzzRng, input: &mut Vec<u8>) {
    let range = rng.subrange(input.len(), input.len());
    let depth = times(rng);
    let nested = match target.numbers {
        NumberEncoding::Digits => {
            let (open, close) = target.delimiters[rng.below(target.delimiters.len())];
            let depth = depth.min(target.max_len / (open.len() + close.len()).max(1));
            [&open.repeat(depth), &input[range.clone()], &close.repeat(depth)].concat()
        }
        NumberEncoding::Varint => {
            let field = 1 + rng.below(4) as u8;
            let tag = (field << 3) | 2;
            measured(input[range.clone()].to_vec(), tag, depth, target.max_len)
        }
    };
    input.splice(range, nested);
}

/// `inner` in a field in a field, each with its true length.
fn measured(mut inner: Vec<u8>, tag: u8, depth: usize, max_len: usize) -> Vec<u8> {
    for _ in 0..depth.min(128) {
        if inner.len() > max_len {
            break;
        }
        let head = [vec![tag], varint(inner.len() as u64)].concat();
        inner.splice(0..0, head);
    }
    inner
}

fn times(rng: &mut FuzzRng) -> usize {
    // Large counts are rare: they cost as much as a hundred others.
    let end = if rng.below(16) == 0 { TIMES.len() } else { 3 };
    TIMES[rng.below(end)]
}

/// The word at a random position: letters and digits, or the bytes between two such words.
fn word(rng: &mut FuzzRng, input: &[u8]) -> Range<usize> {
    let at = rng.below(input.len());
    let inside = input.get(at).is_some_and(u8::is_ascii_alphanumeric);
    run(input, at, |byte| byte.is_ascii_alphanumeric() == inside)
}

/// The longest range from `from` on in which all bytes satisfy `alike`.
fn run(input: &[u8], from: usize, alike: impl Fn(&u8) -> bool) -> Range<usize> {
    let found = input[from..].iter().position(&alike);
    let within = found.map_or(input.len(), |skipped| from + skipped);
    let before = input[..within].iter().rev();
    let start = within - before.take_while(|byte| alike(byte)).count();
    let after = input[within..].iter();
    let end = within + after.take_while(|byte| alike(byte)).count();
    start..end
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
