//! Protocol buffers on the wire: fields read where they lie, and written into a buffer.
//!
//! Nothing is copied and nothing is kept: a message is walked field by field, and whoever knows the
//! message picks what it knows. Kept true: whatever the bytes, the answer is fields that lie inside
//! them or one fault, after which there are no more; nesting ends at [`DEEPEST`]. Knows no message.

/// How deep messages may lie in one another: as deep as the readers of others go.
const DEEPEST: u8 = 100;

/// The largest number a field may have.
const LARGEST_NUMBER: u64 = (1 << 29) - 1;

/// The fields of one message, in the order in which they were written. A field that is not repeated
/// may come more than once all the same, and then the last one counts.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    depth_left: u8,
}

/// One field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Field<'a> {
    /// Its number in the message.
    pub(crate) number: u32,
    value: Value<'a>,
    depth_left: u8,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// They end inside a field.
    #[error("the message ends inside a field")]
    CutShort,
    /// A number of more than 64 bits.
    #[error("a number has more than 64 bits")]
    Overlong,
    /// No field has that number.
    #[error("a field number is not between 1 and {LARGEST_NUMBER}")]
    FieldNumber,
    /// Groups have been out of use since before this protocol was made.
    #[error("field {0} is a group or of no known wire type")]
    WireType(u32),
    /// A known field that is not what the message says.
    #[error("field {0} has another type here")]
    OtherType(u32),
    /// Text that is none.
    #[error("field {0} is not UTF-8")]
    NotText(u32),
    /// Nested without end.
    #[error("messages lie in one another more than {DEEPEST} deep")]
    TooDeep,
}

impl<'a> Fields<'a> {
    /// The fields of a whole message.
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Fields {
            rest: message,
            depth_left: DEEPEST,
        }
    }

    fn field(&mut self) -> Result<Field<'a>, Malformed> {
        let tag = self.varint()?;
        let number = match tag >> 3 {
            number @ 1..=LARGEST_NUMBER => number as u32,
            _ => return Err(Malformed::FieldNumber),
        };
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => Value::Bytes(self.delimited()?),
            5 => Value::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err(Malformed::WireType(number)),
        };
        Ok(Field {
            number,
            value,
            depth_left: self.depth_left,
        })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        // Nearly every tag, length and number is one byte.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            if at == 9 && *byte > 1 {
                return Err(Malformed::Overlong);
            }
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed::CutShort)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed::CutShort)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::CutShort)?;
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed::CutShort)?;
        self.rest = rest;
        Ok(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

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

impl<'a> Field<'a> {
    /// As a whole number without sign, or an enumeration.
    pub(crate) fn uint64(self) -> Result<u64, Malformed> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(Malformed::OtherType(self.number)),
        }
    }

    /// The same, of which the protocol keeps only the lower half.
    pub(crate) fn uint32(self) -> Result<u32, Malformed> {
        self.uint64().map(|number| number as u32)
    }

    /// As yes or no.
    pub(crate) fn bool(self) -> Result<bool, Malformed> {
        self.uint64().map(|number| number != 0)
    }

    /// As a floating point number.
    pub(crate) fn double(self) -> Result<f64, Malformed> {
        match self.value {
            Value::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(Malformed::OtherType(self.number)),
        }
    }

    /// As bytes.
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::OtherType(self.number)),
        }
    }

    /// As text.
    pub(crate) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::NotText(self.number))
    }

    /// As a message in the message.
    pub(crate) fn message(self) -> Result<Fields<'a>, Malformed> {
        Ok(Fields {
            rest: self.bytes()?,
            depth_left: self.depth_left.checked_sub(1).ok_or(Malformed::TooDeep)?,
        })
    }
}

/// Writes the fields of one message behind what a buffer already holds.
///
/// The plain verbs always write, which members of a `oneof` need; those with `some` leave out what
/// is the default of its type, as other fields do.
pub(crate) struct Writer<'v> {
    out: &'v mut Vec<u8>,
}

impl<'v> Writer<'v> {
    /// Writes to the end of `out`.
    pub(crate) fn to(out: &'v mut Vec<u8>) -> Self {
        Writer { out }
    }

    /// A number, an enumeration or a yes or no.
    pub(crate) fn uint(&mut self, field: u32, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    /// A number that is not 0.
    pub(crate) fn some_uint(&mut self, field: u32, number: u64) {
        if number != 0 {
            self.uint(field, number);
        }
    }

    /// A floating point number.
    pub(crate) fn double(&mut self, field: u32, number: f64) {
        self.tag(field, 1);
        self.out.extend_from_slice(&number.to_bits().to_le_bytes());
    }

    /// Bytes, or text.
    pub(crate) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// Bytes, or text, that is not empty.
    pub(crate) fn some_bytes(&mut self, field: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes(field, bytes);
        }
    }

    /// A message in the message. Its length stands before it and is known after it: one byte is left
    /// for it, and only a message that needs more is moved.
    pub(crate) fn message(&mut self, field: u32, fields: impl FnOnce(&mut Writer<'_>)) {
        self.tag(field, 2);
        let at = self.out.len();
        self.out.push(0);
        fields(&mut Writer { out: self.out });
        let length = self.out.len() - at - 1;
        if length < 0x80 {
            self.out[at] = length as u8;
            return;
        }
        self.varint(length as u64);
        let digits = self.out.len() - at - 1 - length;
        self.out[at + 1..].rotate_right(digits);
        // The byte that was left is one too many now.
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
mod mutations;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fields: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        fields(&mut Writer::to(&mut out));
        out
    }

    fn read(message: &[u8]) -> Result<Vec<Field<'_>>, Malformed> {
        Fields::of(message).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let long = "x".repeat(300);
        let longer = "y".repeat(20_000);
        let message = written(|w| {
            w.uint(1, u64::MAX);
            w.double(2, -1.5);
            w.some_uint(3, 0);
            w.some_bytes(3, b"");
            w.message(4, |w| {
                w.message(1, |w| w.bytes(1, long.as_bytes()));
                w.message(2, |w| w.bytes(1, longer.as_bytes()));
                w.message(3, |_| {});
            });
            w.bytes(536_870_911, b"");
        });
        let fields = read(&message).unwrap();
        assert_eq!(fields.len(), 4, "what is the default is not written");
        assert_eq!(fields[0].uint64(), Ok(u64::MAX));
        assert_eq!(fields[0].uint32(), Ok(u32::MAX));
        assert_eq!(fields[1].double(), Ok(-1.5));
        let inner: Vec<_> = fields[2].message().unwrap().map(Result::unwrap).collect();
        let text = |field: Field<'_>| {
            let inner = field.message().unwrap().next();
            inner.map(|field| field.unwrap().text().unwrap().to_owned())
        };
        assert_eq!(text(inner[0]), Some(long));
        assert_eq!(text(inner[1]), Some(longer));
        assert_eq!(text(inner[2]), None);
        assert_eq!(fields[3].number, 536_870_911);
    }

    #[test]
    fn what_is_no_message_is_one_fault() {
        let cases: [(&[u8], Malformed); 10] = [
            (&[0x80], Malformed::CutShort),
            (&[0x08], Malformed::CutShort),
            (&[0x09, 1, 2, 3], Malformed::CutShort),
            (&[0x0d, 1, 2, 3], Malformed::CutShort),
            (&[0x0a, 3, b'a', b'b'], Malformed::CutShort),
            (
                &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                Malformed::CutShort,
            ),
            (
                &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
                Malformed::Overlong,
            ),
            (&[0x00, 0], Malformed::FieldNumber),
            (&[0x0b, 0x0c], Malformed::WireType(1)),
            (&[0x0e], Malformed::WireType(1)),
        ];
        for (message, want) in cases {
            assert_eq!(read(message), Err(want), "{message:?}");
            let all: Vec<_> = Fields::of(message).collect();
            assert_eq!(all.len(), 1, "nothing comes after a fault");
        }
        let number = read(&[0x08, 1]).unwrap()[0];
        assert_eq!(number.text(), Err(Malformed::OtherType(1)));
        let bytes = read(&[0x0a, 1, 0xff]).unwrap()[0];
        assert_eq!(bytes.text(), Err(Malformed::NotText(1)));
        assert_eq!(bytes.bool(), Err(Malformed::OtherType(1)));
    }

    #[test]
    fn nesting_ends() {
        fn depth(fields: Fields<'_>) -> Result<u32, Malformed> {
            let mut deepest = 0;
            for field in fields {
                deepest = deepest.max(1 + depth(field?.message()?)?);
            }
            Ok(deepest)
        }
        let nested =
            |times: usize| (0..times).fold(Vec::new(), |inner, _| written(|w| w.bytes(1, &inner)));
        assert_eq!(depth(Fields::of(&nested(100))), Ok(100));
        assert_eq!(depth(Fields::of(&nested(101))), Err(Malformed::TooDeep));
    }
}
