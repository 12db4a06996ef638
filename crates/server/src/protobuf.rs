//! Protocol Buffers wire format: reads fields in place and writes fields into a buffer.
//!
//! A message is read field by field without copies, and each caller picks the fields that it knows. Invariant: for any
//! input the iterator yields fields that lie inside it, or one error and then nothing more. Nesting ends at
//! [`MAX_DEPTH`]. Knows no message types.

/// Maximum nesting of messages: the limit of other implementations.
const MAX_DEPTH: u8 = 100;

const MAX_FIELD_NUMBER: u64 = (1 << 29) - 1;

/// The fields of one message, in wire order. A field that is not repeated may still occur more than once. Then the last
/// one counts.
#[derive(Clone, Debug)]
pub(crate) struct ProtobufFields<'a> {
    rest: &'a [u8],
    depth_left: u8,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ProtobufField<'a> {
    pub(crate) number: u32,
    value: ProtobufValue<'a>,
    depth_left: u8,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ProtobufValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Why bytes are not a valid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ProtobufError {
    /// The message ends inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint of more than 64 bits.
    #[error("a varint has more than 64 bits")]
    VarintOverflow,
    /// A field number outside the valid range.
    #[error("a field number is not between 1 and {MAX_FIELD_NUMBER}")]
    InvalidFieldNumber,
    /// A group or an unknown wire type. Groups have been out of use since before this protocol was made.
    #[error("field {0} is a group or has an unknown wire type")]
    UnknownWireType(u32),
    /// A known field with the wire type of another type.
    #[error("field {0} has the wrong wire type")]
    TypeMismatch(u32),
    /// A text field that is not valid UTF-8.
    #[error("field {0} is not UTF-8")]
    InvalidUtf8(u32),
    /// More than [`MAX_DEPTH`] messages inside one another.
    #[error("messages are nested more than {MAX_DEPTH} deep")]
    TooDeep,
}

impl<'a> ProtobufFields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        ProtobufFields { rest: message, depth_left: MAX_DEPTH }
    }

    fn field(&mut self) -> Result<ProtobufField<'a>, ProtobufError> {
        let tag = self.varint()?;
        let number = match tag >> 3 {
            number @ 1..=MAX_FIELD_NUMBER => number as u32,
            _ => return Err(ProtobufError::InvalidFieldNumber),
        };
        let value = match tag & 7 {
            0 => ProtobufValue::Varint(self.varint()?),
            1 => ProtobufValue::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => ProtobufValue::Bytes(self.delimited()?),
            5 => ProtobufValue::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err(ProtobufError::UnknownWireType(number)),
        };
        Ok(ProtobufField { number, value, depth_left: self.depth_left })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        // Nearly every tag, length and number is one byte.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            if at == 9 && *byte > 1 {
                return Err(ProtobufError::VarintOverflow);
            }
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(ProtobufError::Truncated)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn delimited(&mut self) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Result<ProtobufField<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Runs the statement of each known field of a message, in wire order. Other fields are skipped.
macro_rules! for_each_field {
    ($fields:expr, $field:ident: { $($number:literal => $statement:expr,)* }) => {
        for field in $fields {
            let $field = field?;
            match $field.number {
                $($number => $statement,)*
                _ => {}
            }
        }
    };
}
pub(crate) use for_each_field;

impl<'a> ProtobufField<'a> {
    /// As an unsigned integer or an enumeration.
    pub(crate) fn uint64(self) -> Result<u64, ProtobufError> {
        match self.value {
            ProtobufValue::Varint(number) => Ok(number),
            _ => Err(ProtobufError::TypeMismatch(self.number)),
        }
    }

    /// As a 32-bit unsigned integer: the protocol keeps only the lower half.
    pub(crate) fn uint32(self) -> Result<u32, ProtobufError> {
        self.uint64().map(|number| number as u32)
    }

    pub(crate) fn bool(self) -> Result<bool, ProtobufError> {
        self.uint64().map(|number| number != 0)
    }

    pub(crate) fn double(self) -> Result<f64, ProtobufError> {
        match self.value {
            ProtobufValue::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(ProtobufError::TypeMismatch(self.number)),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            ProtobufValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::TypeMismatch(self.number)),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, ProtobufError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ProtobufError::InvalidUtf8(self.number))
    }

    /// As a nested message.
    pub(crate) fn message(self) -> Result<ProtobufFields<'a>, ProtobufError> {
        Ok(ProtobufFields {
            rest: self.bytes()?,
            depth_left: self.depth_left.checked_sub(1).ok_or(ProtobufError::TooDeep)?,
        })
    }
}

/// Appends the fields of one message to a buffer.
///
/// The plain methods always write, as members of a `oneof` need. Methods with an `_if_` suffix leave out the default
/// value of the type, as other fields do.
pub(crate) struct ProtobufWriter<'v> {
    out: &'v mut Vec<u8>,
}

impl<'v> ProtobufWriter<'v> {
    pub(crate) fn to(out: &'v mut Vec<u8>) -> Self {
        ProtobufWriter { out }
    }

    /// A number, an enumeration or a boolean.
    pub(crate) fn uint(&mut self, field: u32, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    pub(crate) fn uint_if_nonzero(&mut self, field: u32, number: u64) {
        if number != 0 {
            self.uint(field, number);
        }
    }

    pub(crate) fn double(&mut self, field: u32, number: f64) {
        self.tag(field, 1);
        self.out.extend_from_slice(&number.to_bits().to_le_bytes());
    }

    /// Bytes or text.
    pub(crate) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn bytes_if_nonempty(&mut self, field: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes(field, bytes);
        }
    }

    /// A nested message. Its length is written before it and known only after it. One byte is reserved for the length,
    /// and only a message that needs more is moved.
    pub(crate) fn message(&mut self, field: u32, fields: impl FnOnce(&mut ProtobufWriter<'_>)) {
        self.tag(field, 2);
        let at = self.out.len();
        self.out.push(0);
        fields(&mut ProtobufWriter { out: self.out });
        let length = self.out.len() - at - 1;
        if length < 0x80 {
            self.out[at] = length as u8;
            return;
        }
        self.varint(length as u64);
        let digits = self.out.len() - at - 1 - length;
        self.out[at + 1..].rotate_right(digits);
        // Removes the reserved byte: the length now lies after it.
        self.out.remove(at);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    mod mutations;

    use super::*;

    fn encode(fields: impl FnOnce(&mut ProtobufWriter<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        fields(&mut ProtobufWriter::to(&mut out));
        out
    }

    fn decode(message: &[u8]) -> Result<Vec<ProtobufField<'_>>, ProtobufError> {
        ProtobufFields::of(message).collect()
    }

    #[test]
    fn written_fields_read_back() {
        let long = "x".repeat(300);
        let longer = "y".repeat(20_000);
        let message = encode(|w| {
            w.uint(1, u64::MAX);
            w.double(2, -1.5);
            w.uint_if_nonzero(3, 0);
            w.bytes_if_nonempty(3, b"");
            w.message(4, |w| {
                w.message(1, |w| w.bytes(1, long.as_bytes()));
                w.message(2, |w| w.bytes(1, longer.as_bytes()));
                w.message(3, |_| {});
            });
            w.bytes(536_870_911, b"");
        });
        let fields = decode(&message).unwrap();
        assert_eq!(fields.len(), 4, "default values are not written");
        assert_eq!(fields[0].uint64(), Ok(u64::MAX));
        assert_eq!(fields[0].uint32(), Ok(u32::MAX));
        assert_eq!(fields[1].double(), Ok(-1.5));
        let inner: Vec<_> = fields[2].message().unwrap().map(Result::unwrap).collect();
        let text = |field: ProtobufField<'_>| {
            let inner = field.message().unwrap().next();
            inner.map(|field| field.unwrap().text().unwrap().to_owned())
        };
        assert_eq!(text(inner[0]), Some(long));
        assert_eq!(text(inner[1]), Some(longer));
        assert_eq!(text(inner[2]), None);
        assert_eq!(fields[3].number, 536_870_911);
    }

    #[test]
    fn invalid_bytes_are_one_error() {
        let cases: [(&[u8], ProtobufError); 10] = [
            (&[0x80], ProtobufError::Truncated),
            (&[0x08], ProtobufError::Truncated),
            (&[0x09, 1, 2, 3], ProtobufError::Truncated),
            (&[0x0d, 1, 2, 3], ProtobufError::Truncated),
            (&[0x0a, 3, b'a', b'b'], ProtobufError::Truncated),
            (&[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], ProtobufError::Truncated),
            (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], ProtobufError::VarintOverflow),
            (&[0x00, 0], ProtobufError::InvalidFieldNumber),
            (&[0x0b, 0x0c], ProtobufError::UnknownWireType(1)),
            (&[0x0e], ProtobufError::UnknownWireType(1)),
        ];
        for (message, want) in cases {
            assert_eq!(decode(message), Err(want), "{message:?}");
            let all: Vec<_> = ProtobufFields::of(message).collect();
            assert_eq!(all.len(), 1, "nothing follows an error");
        }
        let number = decode(&[0x08, 1]).unwrap()[0];
        assert_eq!(number.text(), Err(ProtobufError::TypeMismatch(1)));
        let bytes = decode(&[0x0a, 1, 0xff]).unwrap()[0];
        assert_eq!(bytes.text(), Err(ProtobufError::InvalidUtf8(1)));
        assert_eq!(bytes.bool(), Err(ProtobufError::TypeMismatch(1)));
    }

    #[test]
    fn nesting_is_limited() {
        fn depth(fields: ProtobufFields<'_>) -> Result<u32, ProtobufError> {
            let mut deepest = 0;
            for field in fields {
                deepest = deepest.max(1 + depth(field?.message()?)?);
            }
            Ok(deepest)
        }
        let nested = |times: usize| (0..times).fold(Vec::new(), |inner, _| encode(|w| w.bytes(1, &inner)));
        assert_eq!(depth(ProtobufFields::of(&nested(100))), Ok(100));
        assert_eq!(depth(ProtobufFields::of(&nested(101))), Err(ProtobufError::TooDeep));
    }
}
