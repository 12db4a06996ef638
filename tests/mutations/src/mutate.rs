//! One thing wrong at a time.

use std::ops::Range;

use crate::{Attack, Dice, Numbers};

/// Numbers that arithmetic goes wrong at, as they are written in digits.
const EDGES: [&str; 26] = [
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

/// How often something is repeated, or nests: a few times, and more often than anybody expects.
const TIMES: [usize; 6] = [1, 2, 7, 33, 101, 1000];

/// Does one thing to `input`. It may grow to a multiple; the caller cuts it.
pub(crate) fn mutate(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    match dice.below(10) {
        0 => flip(dice, input),
        1 => set(attack, dice, input),
        2 => insert(attack, dice, input),
        3 => cut(dice, input),
        4 => _ = input.drain(dice.part(input.len(), 16)),
        5 => repeat(attack, dice, input),
        6 => splice(attack, dice, input),
        7 => swap(dice, input),
        8 => to_the_edge(attack.numbers, dice, input),
        _ => nest(attack, dice, input),
    }
}

fn flip(dice: &mut Dice, input: &mut [u8]) {
    let at = dice.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << dice.below(8);
    }
}

fn set(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    let part = dice.part(input.len(), 4);
    let token = dice.one_of(attack.tokens);
    input.splice(part, token.iter().copied());
}

fn insert(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    let at = dice.below(input.len() + 1);
    let token = dice.one_of(attack.tokens);
    input.splice(at..at, token.iter().copied());
}

fn cut(dice: &mut Dice, input: &mut Vec<u8>) {
    // Rarely: there is little left to see in what is cut near its beginning.
    match dice.below(3) {
        0 => input.truncate(dice.below(input.len() + 1)),
        _ => input.truncate(input.len() - dice.below(input.len().min(8))),
    }
}

fn repeat(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    let part = dice.part(input.len(), 64);
    let room = attack.longest / part.len().max(1);
    let copies = input[part.clone()].repeat(times(dice).min(room));
    input.splice(part.end..part.end, copies);
}

fn splice(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    let other = dice.one_of(attack.good);
    input.truncate(dice.below(input.len() + 1));
    input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
}

/// Two words take each other's place.
fn swap(dice: &mut Dice, input: &mut Vec<u8>) {
    let (one, other) = (word(dice, input), word(dice, input));
    let (first, second) = if one.start <= other.start {
        (one, other)
    } else {
        (other, one)
    };
    if first.end <= second.start {
        let last = input[second.clone()].to_vec();
        let moved = input[first.clone()].to_vec();
        input.splice(second, moved);
        input.splice(first, last);
    }
}

/// A number becomes one that arithmetic goes wrong at. A length that does so lies.
fn to_the_edge(numbers: Numbers, dice: &mut Dice, input: &mut Vec<u8>) {
    match numbers {
        Numbers::Digits => {
            let from = dice.below(input.len() + 1);
            let digits = run(input, from, |byte| byte.is_ascii_digit());
            let edge = EDGES[dice.below(EDGES.len())];
            input.splice(digits, edge.bytes());
        }
        Numbers::Bytes => {
            let at = dice.part(input.len(), 1);
            let edge = 1_u64
                .checked_shl(dice.below(65) as u32)
                .unwrap_or(0)
                .wrapping_sub(dice.below(2) as u64);
            input.splice(at, varint(edge));
        }
    }
}

/// A part lies within itself.
fn nest(attack: &Attack<'_>, dice: &mut Dice, input: &mut Vec<u8>) {
    let part = dice.part(input.len(), input.len());
    let depth = times(dice);
    let nested = match attack.numbers {
        Numbers::Digits => {
            let (open, close) = attack.nests[dice.below(attack.nests.len())];
            let depth = depth.min(attack.longest / (open.len() + close.len()).max(1));
            [
                &open.repeat(depth),
                &input[part.clone()],
                &close.repeat(depth),
            ]
            .concat()
        }
        Numbers::Bytes => {
            let field = 1 + dice.below(4) as u8;
            let tag = (field << 3) | 2;
            measured(input[part.clone()].to_vec(), tag, depth, attack.longest)
        }
    };
    input.splice(part, nested);
}

/// `inner` in a field in a field, each with its true length.
fn measured(mut inner: Vec<u8>, tag: u8, depth: usize, longest: usize) -> Vec<u8> {
    for _ in 0..depth.min(128) {
        if inner.len() > longest {
            break;
        }
        let head = [vec![tag], varint(inner.len() as u64)].concat();
        inner.splice(0..0, head);
    }
    inner
}

fn times(dice: &mut Dice) -> usize {
    // The large ones seldom: they cost as much as a hundred others.
    let most = if dice.below(16) == 0 { TIMES.len() } else { 3 };
    TIMES[dice.below(most)]
}

/// The word at some place: letters and digits, or what stands between two of them.
fn word(dice: &mut Dice, input: &[u8]) -> Range<usize> {
    let at = dice.below(input.len());
    let inside = input.get(at).is_some_and(u8::is_ascii_alphanumeric);
    run(input, at, |byte| byte.is_ascii_alphanumeric() == inside)
}

/// The first bytes from `from` on that are alike, all of them.
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
