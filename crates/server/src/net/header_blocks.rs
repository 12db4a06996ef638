//! The header blocks of an HTTP/2 connection (RFC 7541), followed as they arrive.
//!
//! **Entries of the header table that hold memory are counted.** Clients store header fields in the server's table and
//! then refer to them by an index. The HTTP/2 library copies the fields that it stores, except `:authority`, `:scheme`
//! and `:path`: of those it keeps the whole block that they arrived in, 8 KiB or more. A client that inserts another
//! `:path` with every block makes its connection hold as many blocks as the table has entries, about a hundred. A table
//! of 4,096 bytes has at most 128 entries of at least 32 bytes each, so a bit for each of the last 128 insertions is
//! enough. An index counts back from the last insertion, so that sizes and evictions need not be followed. Evicted
//! entries may still be counted, and no held entry is missed.
//!
//! **The authority of a unix socket is made acceptable.** gRPC C-core (grpc-python, Ruby, PHP, C++, Envoy's
//! `google_grpc`) sends the path of the socket as `:authority`, percent-encoded: `tmp%2Frls.sock`. RFC 3986 allows
//! that, but the `http` crate does not, and the library resets the stream. The authority of a unix socket identifies
//! nothing and no listener reads it. So every byte of it that is not an unreserved character becomes `-`. C-core sends
//! it without Huffman coding, and so no length changes. A value with Huffman coding passes unchanged.
//!
//! Input may be split anywhere. Malformed input passes: the library rejects it and ends the connection.

/// Follows the header blocks of one connection.
#[derive(Debug)]
pub(super) struct HeaderBlocks {
    authority: AuthorityUse,
    /// Whether each of the last 128 insertions holds a block. The last one is bit 0.
    holders: u128,
    state: FieldState,
}

/// How `:authority` is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AuthorityUse {
    /// It passes unchanged.
    Unchanged,
    /// It is the path of a unix socket and is made acceptable.
    UnixSocket,
}

/// The part of a header block that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FieldState {
    /// The first byte of a field.
    Start,
    /// The rest of an integer.
    Integer(IntegerUse, HpackInteger),
    /// The length of a text.
    Length(FieldText),
    /// The rest of a text, with the number of bytes left.
    Text(FieldText, usize),
    /// Malformed.
    Invalid,
}

/// The meaning of an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IntegerUse {
    /// A field by its index, or the size of the table. Nothing follows.
    Whole,
    /// The index of a field's name. Its value follows.
    Name { is_inserted: bool },
    /// The length of a text.
    Length(FieldText),
}

/// A text of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FieldText {
    Name(LiteralName),
    /// The value of `:authority`, without Huffman coding.
    Authority,
    /// Any other value.
    Value,
}

/// A literal name, as far as it is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LiteralName {
    is_inserted: bool,
    is_huffman: bool,
    length: usize,
    /// Whether all of it is a prefix of `:authority`.
    is_authority: bool,
}

/// An integer, as far as it is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HpackInteger {
    value: u64,
    shift: u32,
}

const AUTHORITY: &[u8] = b":authority";
/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: u64 = 1;
/// The indexes of `:authority`, `:path` and `:scheme` in the static table.
const HOLDERS: [u64; 5] = [AUTHORITY_INDEX, 4, 5, 6, 7];
/// The first index after the static table.
const FIRST_DYNAMIC: u64 = 62;
/// The Huffman code of `:`, which has seven bits.
const HUFFMAN_COLON: u8 = 0b101_1100;
/// The library accepts no larger integer.
const MAX_INTEGER: u64 = 1 << 28;

impl HeaderBlocks {
    pub(super) fn new(authority: AuthorityUse) -> Self {
        HeaderBlocks { authority, holders: 0, state: FieldState::Start }
    }

    /// The number of blocks that the header table may hold.
    pub(super) fn held_blocks(&self) -> u32 {
        self.holders.count_ones()
    }

    /// Begins a header block, even if the previous one is incomplete.
    pub(super) fn begin(&mut self) {
        if self.state != FieldState::Invalid {
            self.state = FieldState::Start;
        }
    }

    /// Follows the next bytes of a header block.
    pub(super) fn scan(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                FieldState::Text(text, left) => {
                    let used = left.min(bytes.len() - at);
                    self.text(text, left - used, &mut bytes[at..at + used]);
                    at += used;
                    continue;
                }
                FieldState::Invalid => return,
                FieldState::Start => self.begin_field(bytes[at]),
                FieldState::Integer(purpose, known) => self.continue_integer(purpose, known, bytes[at]),
                FieldState::Length(text) => {
                    let text = if bytes[at] & 0x80 == 0 { text } else { text.huffman() };
                    self.begin_integer(IntegerUse::Length(text), bytes[at], 7);
                }
            }
            at += 1;
        }
    }

    /// The first byte of a field determines its kind.
    fn begin_field(&mut self, byte: u8) {
        match byte {
            0x80.. => self.begin_integer(IntegerUse::Whole, byte, 7),
            0x40.. => self.begin_integer(IntegerUse::Name { is_inserted: true }, byte, 6),
            0x20.. => self.begin_integer(IntegerUse::Whole, byte, 5),
            _ => self.begin_integer(IntegerUse::Name { is_inserted: false }, byte, 4),
        }
    }

    /// An integer begins in the last bits of a byte, and continues if all of them are set.
    fn begin_integer(&mut self, purpose: IntegerUse, byte: u8, bits: u32) {
        let mask = (1 << bits) - 1;
        let value = u64::from(byte) & mask;
        if value == mask {
            self.state = FieldState::Integer(purpose, HpackInteger { value, shift: 0 });
        } else {
            self.use_integer(purpose, value);
        }
    }

    fn continue_integer(&mut self, purpose: IntegerUse, known: HpackInteger, byte: u8) {
        let value = known.value + (u64::from(byte & 0x7f) << known.shift);
        let shift = known.shift + 7;
        if value > MAX_INTEGER || shift > 35 {
            self.state = FieldState::Invalid;
        } else if byte & 0x80 == 0 {
            self.use_integer(purpose, value);
        } else {
            self.state = FieldState::Integer(purpose, HpackInteger { value, shift });
        }
    }

    fn use_integer(&mut self, purpose: IntegerUse, value: u64) {
        self.state = match purpose {
            IntegerUse::Whole => FieldState::Start,
            IntegerUse::Length(text) => return self.text(text, value as usize, &mut []),
            IntegerUse::Name { is_inserted } if value == 0 => FieldState::Length(FieldText::Name(LiteralName {
                is_inserted,
                is_huffman: false,
                length: 0,
                is_authority: true,
            })),
            IntegerUse::Name { is_inserted } => {
                if is_inserted {
                    self.insert(self.is_holder(value));
                }
                FieldState::Length(FieldText::value_of(value == AUTHORITY_INDEX))
            }
        };
    }

    /// Scans the next bytes of a text, of which `left` are still to come.
    fn text(&mut self, text: FieldText, left: usize, bytes: &mut [u8]) {
        let (text, after) = match text {
            FieldText::Name(name) => {
                let name = self.name(name, left, bytes);
                let is_authority = name.is_authority && name.length == AUTHORITY.len();
                let value = FieldText::value_of(is_authority);
                (FieldText::Name(name), FieldState::Length(value))
            }
            FieldText::Authority => {
                if self.authority == AuthorityUse::UnixSocket {
                    bytes.iter_mut().for_each(sanitize_byte);
                }
                (text, FieldState::Start)
            }
            FieldText::Value => (text, FieldState::Start),
        };
        self.state = if left > 0 { FieldState::Text(text, left) } else { after };
    }

    /// Scans the next bytes of a name. Its first byte shows whether the field can hold a block.
    fn name(&mut self, mut name: LiteralName, left: usize, bytes: &[u8]) -> LiteralName {
        let is_decided = name.length == 0 && (left == 0 || !bytes.is_empty());
        if name.is_inserted && is_decided {
            let is_pseudo = bytes
                .first()
                .is_some_and(|first| if name.is_huffman { first >> 1 == HUFFMAN_COLON } else { *first == b':' });
            self.insert(is_pseudo);
        }
        name.is_authority &= AUTHORITY.get(name.length..).is_some_and(|rest| rest.starts_with(bytes));
        name.length += bytes.len();
        name
    }

    fn insert(&mut self, is_holder: bool) {
        self.holders = self.holders << 1 | u128::from(is_holder);
    }

    /// Whether the entry at `index` has a name whose value holds a block.
    fn is_holder(&self, index: u64) -> bool {
        match index.checked_sub(FIRST_DYNAMIC) {
            Some(back) => back < 128 && self.holders >> back & 1 == 1,
            None => HOLDERS.contains(&index),
        }
    }
}

impl FieldText {
    fn value_of(is_authority: bool) -> Self {
        if is_authority { FieldText::Authority } else { FieldText::Value }
    }

    /// The same text with Huffman coding.
    fn huffman(self) -> Self {
        match self {
            FieldText::Name(name) => FieldText::Name(LiteralName { is_huffman: true, is_authority: false, ..name }),
            FieldText::Authority | FieldText::Value => FieldText::Value,
        }
    }
}

fn sanitize_byte(byte: &mut u8) {
    if !(byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
        *byte = b'-';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        match text.len() {
            short @ ..0x7f => bytes.push(short as u8),
            long => {
                let mut rest = long - 0x7f;
                bytes.push(0x7f);
                while rest >= 0x80 {
                    bytes.push((rest % 0x80) as u8 | 0x80);
                    rest /= 0x80;
                }
                bytes.push(rest as u8);
            }
        }
        bytes.extend(text);
        bytes
    }

    fn huffman(coded: &[u8]) -> Vec<u8> {
        let mut bytes = text(coded);
        bytes[0] |= 0x80;
        bytes
    }

    const INSERTED: u8 = 0x40;
    const NOT_INSERTED: u8 = 0;
    const NEVER_INDEXED: u8 = 0x10;

    /// A field with a literal name.
    fn literal(kind: u8, name: &str, value: &str) -> Vec<u8> {
        [&[kind][..], &text(name.as_bytes()), &text(value.as_bytes())].concat()
    }

    /// A field whose name is an index of one byte.
    fn indexed(kind: u8, index: u8, value: &str) -> Vec<u8> {
        [&[kind | index][..], &text(value.as_bytes())].concat()
    }

    /// Scans the fields in pieces of every size, with the same result each time.
    fn scanned(authority: AuthorityUse, fields: &[Vec<u8>]) -> (Vec<u8>, u32) {
        let mut results = [1, 2, 3, 7, 64, 100_000].map(|size| {
            let (mut bytes, mut blocks) = (fields.concat(), HeaderBlocks::new(authority));
            blocks.begin();
            bytes.chunks_mut(size).for_each(|part| blocks.scan(part));
            (bytes, blocks.held_blocks())
        });
        assert!(results.iter().all(|result| *result == results[0]));
        std::mem::take(&mut results[0])
    }

    #[track_caller]
    fn check_held(fields: &[Vec<u8>], want: u32) {
        let (bytes, held) = scanned(AuthorityUse::Unchanged, fields);
        assert_eq!((bytes, held), (fields.concat(), want));
    }

    #[test]
    fn inserted_paths_hold_a_block_and_other_fields_none() {
        let inserted = |index, value| indexed(INSERTED, index, value);
        check_held(&[vec![0x82, 0x84, 0x86, 0xbe]], 0);
        check_held(&[inserted(4, "/a"), inserted(5, "/b"), inserted(1, "host"), inserted(7, "x")], 4);
        check_held(&[inserted(2, "PUT"), inserted(16, "gzip"), inserted(58, "agent")], 0);
        check_held(&[literal(INSERTED, ":path", "/a"), literal(INSERTED, "x-id", ":path")], 1);
        check_held(&[literal(NOT_INSERTED, ":path", "/a"), literal(NEVER_INDEXED, ":path", "/b")], 0);
        check_held(&[indexed(NOT_INSERTED, 4, "/")], 0);
        check_held(&[literal(INSERTED, "", "nothing"), inserted(4, "")], 1);
    }

    #[test]
    fn a_huffman_coded_name_is_recognised() {
        let path = [&[INSERTED][..], &huffman(&[0xb9, 0x58, 0xd3, 0x3f]), &text(b"/")].concat();
        let other = [&[INSERTED][..], &huffman(&[0xf2, 0xb3, 0x32]), &text(b":")].concat();
        check_held(&[path, other], 1);
    }

    #[test]
    fn a_dynamic_index_refers_to_the_name_of_its_entry() {
        let inserted = |index, value| indexed(INSERTED, index, value);
        // 62 is the last insertion.
        check_held(&[inserted(4, "/a"), inserted(62, "/b"), inserted(62, "/c")], 3);
        check_held(&[inserted(4, "/a"), inserted(16, "br"), inserted(62, "x"), inserted(62, "y")], 1);
        // 63 continues in a second byte.
        let older = [&[0x7f, 0][..], &text(b"/")].concat();
        check_held(&[inserted(4, "/a"), inserted(16, "br"), older], 2);
    }

    #[test]
    fn long_texts_and_sizes_of_the_table_are_skipped() {
        let long = "/".repeat(70_000);
        let size = vec![0x20, 0x3f, 0xe1, 0x1f];
        check_held(&[size, indexed(INSERTED, 4, &long), indexed(INSERTED, 4, "/")], 2);
    }

    #[test]
    fn only_the_last_insertions_count() {
        let paths = indexed(INSERTED, 4, "/").repeat(200);
        let others = indexed(INSERTED, 16, "br").repeat(128);
        check_held(std::slice::from_ref(&paths), 128);
        check_held(&[paths, others], 0);
    }

    #[test]
    fn an_endless_integer_ends_the_scan() {
        check_held(&[vec![0x7f; 12], vec![0xff; 12], indexed(INSERTED, 4, "/a")], 0);
    }

    #[track_caller]
    fn check_rewritten(given: &[Vec<u8>], want: &[Vec<u8>]) {
        assert_eq!(scanned(AuthorityUse::UnixSocket, given).0, want.concat());
        assert_eq!(scanned(AuthorityUse::Unchanged, given).0, given.concat());
    }

    const GIVEN: &str = "tmp%2Fa@b.sock";
    const WANT: &str = "tmp-2Fa-b.sock";

    #[test]
    fn only_the_authority_changes_at_any_position() {
        let fields = |authority: &str| {
            [
                vec![0x83, 0x86, 0xff, 0x81, 0x01],
                literal(INSERTED, ":path", "/a%2Fb"),
                [&[0x0f, 0x80, 0x01][..], &text(b"50%")].concat(),
                literal(INSERTED, "x-long", &"%".repeat(70_000)),
                literal(INSERTED, ":authority", authority),
                literal(INSERTED, ":authority-2", "50%"),
                literal(INSERTED, ":auth", "50%"),
                indexed(INSERTED, 1, authority),
                indexed(NOT_INSERTED, 1, authority),
                indexed(NEVER_INDEXED, 1, authority),
                literal(INSERTED, ":path", "/a%2Fb"),
            ]
        };
        check_rewritten(&fields(GIVEN), &fields(WANT));
    }

    #[test]
    fn an_authority_with_huffman_coding_passes_unchanged() {
        let value = [&[0x41][..], &huffman(b"a%b")].concat();
        let name = [&[INSERTED][..], &huffman(AUTHORITY), &text(b"a%b")].concat();
        check_rewritten(&[value.clone(), name.clone()], &[value, name]);
    }
}
