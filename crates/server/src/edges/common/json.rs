//! The thorough parser of JSON bodies. Every error names its field.
//!
//! Invariant: no value is truncated and no collection grows beyond its bound, whatever the body holds.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_path_to_error::{Path, Segment, Track};

use crate::decider::InputError;

/// Maximum characters of a field name and of a reason, which may repeat input.
const MAX_FIELD_CHARS: usize = 128;
const MAX_REASON_CHARS: usize = 300;

/// Parses all of `body`, which is an object.
pub(crate) fn parse_object<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, InputError> {
    parse(body).map(|Object(object)| object)
}

/// Parses all of `body`.
pub(crate) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, InputError> {
    let (mut source, mut track) = (serde_json::Deserializer::from_slice(body), Track::new());
    let parsed = T::deserialize(serde_path_to_error::Deserializer::new(&mut source, &mut track));
    let parsed = parsed.and_then(|value| source.end().map(|()| value));
    parsed.map_err(|error| {
        let reason = error.to_string();
        // The path of a duplicate or missing field is that of its object.
        let path = known_path(&track.path());
        let field: Vec<String> = path.into_iter().chain(object_field(&reason).map(str::to_owned)).collect();
        InputError::new(truncate(&field.join("."), MAX_FIELD_CHARS), truncate(&reason, MAX_REASON_CHARS))
    })
}

/// The path as far as it is known: where a name is cut off, it ends in `?`. The root has none; it is written as a dot.
fn known_path(path: &Path) -> Option<String> {
    let mut text = path.to_string();
    if matches!(path.iter().next_back(), Some(Segment::Unknown)) {
        text.truncate(text.trim_end_matches('?').trim_end_matches('.').len());
    }
    Some(text).filter(|text| !text.is_empty() && text != ".")
}

/// The field in an error of serde about the fields of an object.
fn object_field(reason: &str) -> Option<&str> {
    let kinds = ["duplicate field `", "missing field `"];
    let rest = kinds.iter().find_map(|kind| reason.strip_prefix(kind))?;
    rest.split('`').next()
}

fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// An optional field that is not null where it is given.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(source: D) -> Result<Option<T>, D::Error> {
    T::deserialize(source).map(Some)
}

/// A struct that is written as an object. Serde would also accept a list of the values of its fields.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

/// An object of any names, in order, each as often as it is given.
#[derive(Debug)]
pub(crate) struct JsonPairs<'a, V, const MAX: usize>(pub(crate) Vec<(Cow<'a, str>, V)>);

impl<V, const MAX: usize> Default for JsonPairs<'_, V, MAX> {
    fn default() -> Self {
        JsonPairs(Vec::new())
    }
}

/// A list with a bounded number of items.
#[derive(Debug)]
pub(crate) struct List<V, const MAX: usize>(pub(crate) Vec<V>);

/// Text, borrowed from the body unless it holds escapes.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A whole number, 0 or more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeNumber(pub(crate) u64);

struct JsonVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_map(JsonVisitor::<Self>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for JsonVisitor<Object<T>> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>, const MAX: usize> Deserialize<'de> for JsonPairs<'a, V, MAX> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_map(JsonVisitor::<Self>(PhantomData))
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>, const MAX: usize> Visitor<'de> for JsonVisitor<JsonPairs<'a, V, MAX>> {
    type Value = JsonPairs<'a, V, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(Text(name)) = map.next_key()? {
            if pairs.len() == MAX {
                return Err(A::Error::custom(format_args!("more than {MAX} names")));
            }
            pairs.push((name, map.next_value()?));
        }
        Ok(JsonPairs(pairs))
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<V, MAX> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_seq(JsonVisitor::<Self>(PhantomData))
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Visitor<'de> for JsonVisitor<List<V, MAX>> {
    type Value = List<V, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == MAX {
                return Err(A::Error::custom(format_args!("a list has at most {MAX} items")));
            }
            items.push(item);
        }
        Ok(List(items))
    }
}

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_u64(WholeNumberVisitor)
    }
}

struct WholeNumberVisitor;

impl Visitor<'_> for WholeNumberVisitor {
    type Value = WholeNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, 0 or more")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
        Ok(WholeNumber(number))
    }
}
