//! The full parser behind `wire`: serde visitors that build requests and track their position for error messages.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidegate::DEFAULT_PERMIT_TTL;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::request::Request;

use super::attributes::{AttributeBuilder, check_name};
use super::wire::{
    AcquireBody, CheckBatch, CheckBody, CheckOptions, CheckRequest, EMPTY_REQUEST, InputError, MAX_COSTS, MAX_ITEMS,
    PlainCost, TTL_RANGE_MS,
};

/// Maximum characters of the input that an error message repeats.
const MAX_ECHO_CHARS: usize = 64;
const MAX_REASON_CHARS: usize = 300;

/// The position of the parser, for error messages.
#[derive(Debug, Default)]
pub(super) struct Trace {
    item: Cell<Option<usize>>,
    field: Cell<&'static str>,
    /// The name inside the field, as the caller wrote it. Set only when there is an error.
    name: RefCell<Option<String>>,
}

impl Trace {
    pub(super) fn set_field(&self, field: &'static str) {
        self.field.set(field);
    }

    pub(super) fn set_key(&self, name: &str) {
        *self.name.borrow_mut() = Some(truncate(name, MAX_ECHO_CHARS));
    }

    pub(super) fn set_unknown_field(&self, field: &str) {
        self.set_field("");
        if !field.is_empty() {
            self.set_key(field);
        }
    }

    /// The error at the current position.
    pub(super) fn to_input_error(&self, error: &serde_json::Error) -> InputError {
        let item = self.item.get().map(|item| format!("[{item}]"));
        let field = Some(self.field.get().to_owned()).filter(|field| !field.is_empty());
        let parts = [item, field, self.name.borrow().clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        InputError { field: parts.join("."), reason: truncate(&error.to_string(), MAX_REASON_CHARS) }
    }
}

fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A request, or a list of about that many.
pub(super) struct CheckBodySeed<'t>(pub(super) &'t Trace, pub(super) usize);

impl<'de> DeserializeSeed<'de> for CheckBodySeed<'_> {
    type Value = CheckBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CheckBodySeed<'_> {
    type Value = CheckBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request or a list of requests")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut request = EMPTY_REQUEST;
        let options = CheckRequestSeed(self.0, &mut request, None).visit_map(map)?;
        Ok(CheckBody::One(Box::new(CheckRequest { request, options })))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let CheckBodySeed(trace, expected_items) = self;
        let mut batch =
            CheckBatch { requests: Vec::with_capacity(expected_items), options: Vec::with_capacity(expected_items) };
        loop {
            trace.item.set(Some(batch.options.len()));
            trace.set_field("");
            // Parsed in place.
            let request = batch.requests.push_mut(EMPTY_REQUEST);
            let Some(options) = list.next_element_seed(CheckRequestSeed(trace, request, None))? else {
                batch.requests.pop();
                break;
            };
            if batch.options.len() == MAX_ITEMS {
                trace.set_field("");
                return Err(A::Error::custom(format_args!("a list has at most {MAX_ITEMS} requests")));
            }
            batch.options.push(options);
        }
        trace.item.set(None);
        Ok(CheckBody::Many(batch))
    }
}

/// Parses an object into a request, with a TTL if it acquires a permit.
struct CheckRequestSeed<'t, 'r, 'de>(&'t Trace, &'r mut Request<'de>, Option<&'t Cell<Option<u64>>>);

impl<'de> DeserializeSeed<'de> for CheckRequestSeed<'_, '_, 'de> {
    type Value = CheckOptions;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<CheckOptions, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CheckRequestSeed<'_, '_, 'de> {
    type Value = CheckOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request: an object with attributes, cost, costs, receipt")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CheckOptions, A::Error> {
        let CheckRequestSeed(trace, request, ttl_ms) = self;
        let (mut cost, mut receipt, mut seen) = (None, false, 0_u8);
        while let Some(JsonText(field)) = map.next_key()? {
            let (bit, name) = match &*field {
                "attributes" => (1, "attributes"),
                "cost" => (2, "cost"),
                "costs" => (4, "costs"),
                "receipt" => (8, "receipt"),
                "ttl_ms" if ttl_ms.is_some() => (16, "ttl_ms"),
                other => {
                    trace.set_unknown_field(other);
                    let known = match ttl_ms {
                        None => "unknown field, write attributes, cost, costs or receipt",
                        Some(_) => "unknown field, write attributes, cost, costs, receipt or ttl_ms",
                    };
                    return Err(A::Error::custom(known));
                }
            };
            trace.set_field(name);
            if seen & bit != 0 {
                return Err(A::Error::custom("given twice"));
            }
            seen |= bit;
            match bit {
                1 => map.next_value_seed(AttributesSeed(trace, request))?,
                2 => cost = Some(map.next_value_seed(WholeNumberSeed)?),
                4 => request.costs = to_costs(map.next_value_seed(CostsSeed(trace))?),
                8 => receipt = map.next_value()?,
                _ => {
                    let millis = map.next_value_seed(WholeNumberSeed)?;
                    if let Some(ttl_ms) = ttl_ms {
                        ttl_ms.set(Some(millis));
                    }
                }
            }
            trace.set_field("");
        }
        request.cost = cost.and_then(Cost::new);
        Ok(CheckOptions { plain_cost: PlainCost::of(cost), receipt })
    }
}

/// Parses `{"ip": "...", ...}` into a request.
pub(super) struct AttributesSeed<'t, 'r, 'de>(pub(super) &'t Trace, pub(super) &'r mut Request<'de>);

impl<'de> DeserializeSeed<'de> for AttributesSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AttributesSeed<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let AttributesSeed(trace, request) = self;
        let mut attributes = AttributeBuilder::of(request);
        while let Some(JsonText(name)) = map.next_key()? {
            attributes.count_one().map_err(A::Error::custom)?;
            let named = |error: A::Error| {
                trace.set_key(&name);
                error
            };
            let invalid = |reason: String| named(A::Error::custom(reason));
            check_name(&name).map_err(invalid)?;
            let JsonText(value) = map.next_value().map_err(named)?;
            let echo = name.clone();
            attributes.add(name, value).map_err(|reason| {
                trace.set_key(&echo);
                A::Error::custom(reason)
            })?;
        }
        Ok(())
    }
}

/// Parses `{"tokens": 1500}` into units and numbers, 0 included.
pub(super) struct CostsSeed<'t>(pub(super) &'t Trace);

impl<'de> DeserializeSeed<'de> for CostsSeed<'_> {
    type Value = Vec<(Cow<'de, str>, u64)>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CostsSeed<'_> {
    type Value = Vec<(Cow<'de, str>, u64)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of units and whole numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let CostsSeed(trace) = self;
        let mut costs: Self::Value = Vec::new();
        while let Some(JsonText(unit)) = map.next_key()? {
            let named = |error: A::Error| {
                trace.set_key(&unit);
                error
            };
            if costs.len() == MAX_COSTS {
                return Err(A::Error::custom(format_args!("more than {MAX_COSTS} units")));
            }
            check_name(&unit).map_err(|reason| named(A::Error::custom(reason)))?;
            if costs.iter().any(|(known, _)| *known == unit) {
                return Err(named(A::Error::custom("given twice")));
            }
            let units = map.next_value_seed(WholeNumberSeed).map_err(named)?;
            costs.push((unit, units));
        }
        Ok(costs)
    }
}

/// The costs to charge. A unit that costs 0 is not charged.
pub(super) fn to_costs<'de>(costs: Vec<(Cow<'de, str>, u64)>) -> Vec<(Cow<'de, str>, Option<Cost>)> {
    let costs = costs.into_iter();
    costs.map(|(unit, units)| (unit, Cost::new(units))).collect()
}

/// Text, borrowed from the body unless it holds escapes.
pub(super) struct JsonText<'de>(pub(super) Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for JsonText<'de> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_str(JsonTextVisitor)
    }
}

struct JsonTextVisitor;

impl<'de> Visitor<'de> for JsonTextVisitor {
    type Value = JsonText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<JsonText<'de>, E> {
        Ok(JsonText(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<JsonText<'de>, E> {
        Ok(JsonText(Cow::Owned(text.to_owned())))
    }
}

/// A whole number, 0 or more.
pub(super) struct WholeNumberSeed;

impl<'de> DeserializeSeed<'de> for WholeNumberSeed {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<u64, D::Error> {
        source.deserialize_u64(self)
    }
}

impl Visitor<'_> for WholeNumberSeed {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, 0 or more")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let unexpected = serde::de::Unexpected::Signed(number);
        u64::try_from(number).map_err(|_| E::invalid_value(unexpected, &self))
    }
}

/// A request for a permit.
pub(super) struct AcquireSeed<'t>(pub(super) &'t Trace);

impl<'de> DeserializeSeed<'de> for AcquireSeed<'_> {
    type Value = AcquireBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        let (trace, mut request, ttl_ms) = (self.0, EMPTY_REQUEST, Cell::new(None));
        let options = CheckRequestSeed(trace, &mut request, Some(&ttl_ms)).deserialize(source)?;
        if options.plain_cost == PlainCost::Zero {
            trace.set_field("cost");
            return Err(D::Error::custom("a permit costs 1 or more"));
        }
        let millis = ttl_ms.get().unwrap_or(Nanos::from(DEFAULT_PERMIT_TTL).millis_up());
        if !TTL_RANGE_MS.contains(&millis) {
            trace.set_field("ttl_ms");
            let (min, max) = (TTL_RANGE_MS.start(), TTL_RANGE_MS.end());
            return Err(D::Error::custom(format_args!(
                "{millis} is not a valid TTL of a permit, write {min} to {max}"
            )));
        }
        Ok(AcquireBody { request, ttl: Nanos::from_millis(millis), receipt: options.receipt })
    }
}

/// An object with one string field of this name.
pub(super) struct TextFieldSeed<'t>(pub(super) &'t Trace, pub(super) &'static str);

impl<'de> DeserializeSeed<'de> for TextFieldSeed<'_> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextFieldSeed<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a {}", self.1)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let TextFieldSeed(trace, name) = self;
        let mut text = None;
        while let Some(JsonText(field)) = map.next_key()? {
            trace.set_field(name);
            if field != name {
                trace.set_unknown_field(&field);
                let known = format_args!("unknown field, write {name}");
                return Err(A::Error::custom(known));
            }
            let JsonText(value) = map.next_value()?;
            if text.replace(value).is_some() {
                return Err(A::Error::custom("given twice"));
            }
        }
        trace.set_field(name);
        text.ok_or_else(|| A::Error::custom("missing"))
    }
}
