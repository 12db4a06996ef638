//! Parses commands: arrays of bulk strings, and inline commands as typed by hand. Pure: no clock, no I/O, no limiter.
//!
//! Arguments are borrowed from the input, unless an inline command holds escapes. Invariant: any input yields a command
//! within the bounds below, a request for more bytes, or one error in the words of Redis. Nothing panics. Parsing an
//! incomplete array again costs a step per argument, not per byte.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;

/// Maximum arguments of a command, its name included: 64 attributes with their values, costs in 16 units, and the words
/// between them.
pub(crate) const MAX_ARGUMENTS: usize = 192;
/// Maximum size of a command, and so of an argument or a line.
pub(crate) const MAX_COMMAND_BYTES: usize = 64 << 10;
/// A type byte and a number that fits, without a line end.
const MAX_COUNT_BYTES: usize = 32;

/// The arguments of a command, its name first. The arguments of `CL.THROTTLE` fit without allocation.
pub(crate) type Arguments<'b> = SmallVec<[Cow<'b, [u8]>; 6]>;

/// The result of parsing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParsedCommand {
    /// A command of this many bytes. Without arguments it is empty, and has no reply.
    Complete(usize),
    /// The beginning of a command.
    Incomplete,
}

/// Input that is not a command. Nothing after it can be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum RespError {
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    #[error("Protocol error: too big mbulk count string")]
    LongArrayLength,
    #[error("Protocol error: expected '$', got '{}'", Printable(*.0))]
    NotBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    #[error("Protocol error: too big bulk count string")]
    LongBulkLength,
    #[error("Protocol error: expected CRLF after a bulk string")]
    BulkEnd,
    #[error("Protocol error: too big inline request")]
    LongLine,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: too big request")]
    LongCommand,
}

/// Parses the command at the front of `bytes` into `arguments`, which are empty.
pub(crate) fn parse_command<'b>(bytes: &'b [u8], arguments: &mut Arguments<'b>) -> Result<ParsedCommand, RespError> {
    match bytes.first() {
        None => Ok(ParsedCommand::Incomplete),
        Some(b'*') => parse_array(bytes, arguments),
        Some(_) => parse_inline(bytes, arguments),
    }
}

fn parse_array<'b>(bytes: &'b [u8], arguments: &mut Arguments<'b>) -> Result<ParsedCommand, RespError> {
    let Some((count, mut at)) = parse_count(bytes, RespError::ArrayLength, RespError::LongArrayLength)? else {
        return Ok(ParsedCommand::Incomplete);
    };
    // As in Redis, an empty array is an empty command.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_ARGUMENTS {
        return Err(RespError::ArrayLength);
    }
    for _ in 0..count {
        let rest = &bytes[at..];
        match rest.first() {
            Some(b'$') => {}
            Some(other) => return Err(RespError::NotBulk(*other)),
            None => return Ok(ParsedCommand::Incomplete),
        }
        let Some((length, head)) = self::parse_count(rest, RespError::BulkLength, RespError::LongBulkLength)? else {
            return Ok(ParsedCommand::Incomplete);
        };
        let length = usize::try_from(length).map_err(|_| RespError::BulkLength)?;
        if length > MAX_COMMAND_BYTES {
            return Err(RespError::BulkLength);
        }
        let end = head + length;
        if at + end + 2 > MAX_COMMAND_BYTES {
            return Err(RespError::LongCommand);
        }
        match rest.get(end..end + 2) {
            Some(b"\r\n") => arguments.push(Cow::Borrowed(&rest[head..end])),
            Some(_) => return Err(RespError::BulkEnd),
            None => return Ok(ParsedCommand::Incomplete),
        }
        at += end + 2;
    }
    Ok(ParsedCommand::Complete(at))
}

/// The number after the type byte at the front, and the offset of the bytes after it.
#[inline]
fn parse_count(bytes: &[u8], bad: RespError, long: RespError) -> Result<Option<(i64, usize)>, RespError> {
    let window = &bytes[..bytes.len().min(MAX_COUNT_BYTES)];
    let Some(end) = window.iter().position(|byte| *byte == b'\r') else {
        return if window.len() == MAX_COUNT_BYTES { Err(long) } else { Ok(None) };
    };
    let number = parse_integer(&window[1..end]).ok_or(bad)?;
    match bytes.get(end + 1) {
        Some(b'\n') => Ok(Some((number, end + 2))),
        Some(_) => Err(bad),
        None => Ok(None),
    }
}

/// Parses a number in the form of the protocol: no sign but a minus, no leading zero.
#[inline]
fn parse_integer(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 || (digits[0] == b'0' && digits.len() + usize::from(negative) > 1) {
        return None;
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -number } else { number })
}

/// An inline command: words between spaces, or in quotes.
fn parse_inline<'b>(bytes: &'b [u8], arguments: &mut Arguments<'b>) -> Result<ParsedCommand, RespError> {
    let window = &bytes[..bytes.len().min(MAX_COMMAND_BYTES)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return if window.len() == MAX_COMMAND_BYTES {
            Err(RespError::LongLine)
        } else {
            Ok(ParsedCommand::Incomplete)
        };
    };
    let mut rest = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(ParsedCommand::Complete(end + 1));
        }
        if arguments.len() == MAX_ARGUMENTS {
            return Err(RespError::LongCommand);
        }
        let (word, after) = parse_word(rest)?;
        arguments.push(word);
        rest = after;
    }
}

/// The word at the front of a line, and the rest of the line.
fn parse_word(line: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), RespError> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'');
    let plain = line.iter().position(ends).unwrap_or(line.len());
    if !matches!(line.get(plain), Some(b'"' | b'\'')) {
        return Ok((Cow::Borrowed(&line[..plain]), &line[plain..]));
    }
    // A quote may occur inside a word, and ends it.
    let quote = line[plain];
    let mut word = line[..plain].to_vec();
    let mut rest = &line[plain + 1..];
    loop {
        rest = match (quote, rest) {
            (_, []) => return Err(RespError::Quotes),
            (b'"', [b'\\', b'x', high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                word.push(hex_digit(*high) << 4 | hex_digit(*low));
                after
            }
            (b'"', [b'\\', escaped, after @ ..]) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            (b'\'', [b'\\', b'\'', after @ ..]) => {
                word.push(b'\'');
                after
            }
            (_, [end, after @ ..]) if *end == quote => {
                let closed = after.first().is_none_or(u8::is_ascii_whitespace);
                return if closed { Ok((Cow::Owned(word), after)) } else { Err(RespError::Quotes) };
            }
            (_, [byte, after @ ..]) => {
                word.push(*byte);
                after
            }
        };
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// A byte as it may occur in a reply, which ends at the end of its line.
struct Printable(u8);

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self.0 {
            b' '..=b'~' => char::from(self.0),
            _ => '?',
        };
        write!(f, "{shown}")
    }
}

#[cfg(test)]
mod tests;
