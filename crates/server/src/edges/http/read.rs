//! The reader behind `wire`: visitors that build requests and remember where they are.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidegate::USUAL_SLOT;
use tidegate_core::request::Request;
use tidegate_core::units::{Cost, Nanos};

use super::attributes::{Attributes, check_name};
use super::wire::{
    Acquire, Ask, Asked, Asks, BLANK, BadInput, LIVES_MS, MOST_COSTS, MOST_ITEMS, PlainCost, Wish,
};

/// What a fault repeats of the input at most, in characters.
const LONGEST_ECHO: usize = 64;
const LONGEST_REASON: usize = 300;

/// Where the reader is, for the fault it may find there.
#[derive(Debug, Default)]
pub(super) struct Trace {
    item: Cell<Option<usize>>,
    field: Cell<&'static str>,
    /// The caller's own name for the place inside the field, noted once there is a fault.
    name: RefCell<Option<String>>,
}

impl Trace {
    pub(super) fn at(&self, field: &'static str) {
        self.field.set(field);
    }

    pub(super) fn inside(&self, name: &str) {
        *self.name.borrow_mut() = Some(cut(name, LONGEST_ECHO));
    }

    pub(super) fn at_unknown(&self, field: &str) {
        self.at("");
        if !field.is_empty() {
            self.inside(field);
        }
    }

    /// The fault at the place the reader has come to.
    pub(super) fn fault(&self, error: &serde_json::Error) -> BadInput {
        let item = self.item.get().map(|item| format!("[{item}]"));
        let field = Some(self.field.get().to_owned()).filter(|field| !field.is_empty());
        let parts = [item, field, self.name.borrow().clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        BadInput {
            field: parts.join("."),
            reason: cut(&error.to_string(), LONGEST_REASON),
        }
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A request, or a list of about so many.
pub(super) struct OneOrMany<'t>(pub(super) &'t Trace, pub(super) usize);

impl<'de> DeserializeSeed<'de> for OneOrMany<'_> {
    type Value = Asked<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneOrMany<'_> {
    type Value = Asked<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request or a list of requests")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut request = BLANK;
        let wish = AskSeed(self.0, &mut request, None).visit_map(map)?;
        Ok(Asked::One(Box::new(Ask { request, wish })))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let OneOrMany(trace, about) = self;
        let mut asks = Asks {
            requests: Vec::with_capacity(about),
            wishes: Vec::with_capacity(about),
        };
        loop {
            trace.item.set(Some(asks.wishes.len()));
            trace.at("");
            // Read where it is to stay.
            let request = asks.requests.push_mut(BLANK);
            let Some(wish) = list.next_element_seed(AskSeed(trace, request, None))? else {
                asks.requests.pop();
                break;
            };
            if asks.wishes.len() == MOST_ITEMS {
                trace.at("");
                return Err(A::Error::custom(format_args!(
                    "a list has at most {MOST_ITEMS} requests"
                )));
            }
            asks.wishes.push(wish);
        }
        trace.item.set(None);
        Ok(Asked::Many(asks))
    }
}

/// An object into a request, with a life if it is to be open.
struct AskSeed<'t, 'r, 'de>(
    &'t Trace,
    &'r mut Request<'de>,
    Option<&'t Cell<Option<u64>>>,
);

impl<'de> DeserializeSeed<'de> for AskSeed<'_, '_, 'de> {
    type Value = Wish;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Wish, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AskSeed<'_, '_, 'de> {
    type Value = Wish;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request: an object with attributes, cost, costs, receipt")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Wish, A::Error> {
        let AskSeed(trace, request, lasts) = self;
        let (mut cost, mut receipt, mut seen) = (None, false, 0_u8);
        while let Some(Text(field)) = map.next_key()? {
            let (bit, name) = match &*field {
                "attributes" => (1, "attributes"),
                "cost" => (2, "cost"),
                "costs" => (4, "costs"),
                "receipt" => (8, "receipt"),
                "ttl_ms" if lasts.is_some() => (16, "ttl_ms"),
                other => {
                    trace.at_unknown(other);
                    let known = match lasts {
                        None => "unknown field, write attributes, cost, costs or receipt",
                        Some(_) => {
                            "unknown field, write attributes, cost, costs, receipt or ttl_ms"
                        }
                    };
                    return Err(A::Error::custom(known));
                }
            };
            trace.at(name);
            if seen & bit != 0 {
                return Err(A::Error::custom("given twice"));
            }
            seen |= bit;
            match bit {
                1 => map.next_value_seed(AttributesSeed(trace, request))?,
                2 => cost = Some(map.next_value_seed(Whole)?),
                4 => request.costs = charged(map.next_value_seed(Costs(trace))?),
                8 => receipt = map.next_value()?,
                _ => {
                    let millis = map.next_value_seed(Whole)?;
                    if let Some(lasts) = lasts {
                        lasts.set(Some(millis));
                    }
                }
            }
            trace.at("");
        }
        request.cost = cost.and_then(Cost::new);
        Ok(Wish {
            plain_cost: PlainCost::of(cost),
            receipt,
        })
    }
}

/// `{"ip": "...", ...}` into a request.
pub(super) struct AttributesSeed<'t, 'r, 'de>(
    pub(super) &'t Trace,
    pub(super) &'r mut Request<'de>,
);

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
        let mut attributes = Attributes::of(request);
        while let Some(Text(name)) = map.next_key()? {
            attributes.one_more().map_err(A::Error::custom)?;
            let named = |error: A::Error| {
                trace.inside(&name);
                error
            };
            let unfit = |reason: String| named(A::Error::custom(reason));
            check_name(&name).map_err(unfit)?;
            let Text(value) = map.next_value().map_err(named)?;
            let echo = name.clone();
            attributes.add(name, value).map_err(|reason| {
                trace.inside(&echo);
                A::Error::custom(reason)
            })?;
        }
        Ok(())
    }
}

/// `{"tokens": 1500}` into units and numbers, 0 included.
pub(super) struct Costs<'t>(pub(super) &'t Trace);

impl<'de> DeserializeSeed<'de> for Costs<'_> {
    type Value = Vec<(Cow<'de, str>, u64)>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Costs<'_> {
    type Value = Vec<(Cow<'de, str>, u64)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of units and whole numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Costs(trace) = self;
        let mut costs: Self::Value = Vec::new();
        while let Some(Text(unit)) = map.next_key()? {
            let named = |error: A::Error| {
                trace.inside(&unit);
                error
            };
            if costs.len() == MOST_COSTS {
                return Err(A::Error::custom(format_args!(
                    "more than {MOST_COSTS} units"
                )));
            }
            check_name(&unit).map_err(|reason| named(A::Error::custom(reason)))?;
            if costs.iter().any(|(known, _)| *known == unit) {
                return Err(named(A::Error::custom("given twice")));
            }
            let units = map.next_value_seed(Whole).map_err(named)?;
            costs.push((unit, units));
        }
        Ok(costs)
    }
}

/// What is to be charged: of a unit that costs 0, nothing.
pub(super) fn charged<'de>(costs: Vec<(Cow<'de, str>, u64)>) -> Vec<(Cow<'de, str>, Option<Cost>)> {
    let costs = costs.into_iter();
    costs
        .map(|(unit, units)| (unit, Cost::new(units)))
        .collect()
}

/// Text, borrowed from the body unless it holds escapes.
pub(super) struct Text<'de>(pub(super) Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

/// A whole number, 0 or more.
pub(super) struct Whole;

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<u64, D::Error> {
        source.deserialize_u64(self)
    }
}

impl Visitor<'_> for Whole {
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

/// A request that is to be open.
pub(super) struct AcquireSeed<'t>(pub(super) &'t Trace);

impl<'de> DeserializeSeed<'de> for AcquireSeed<'_> {
    type Value = Acquire<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        let (trace, mut request, lasts) = (self.0, BLANK, Cell::new(None));
        let wish = AskSeed(trace, &mut request, Some(&lasts)).deserialize(source)?;
        if wish.plain_cost == PlainCost::Zero {
            trace.at("cost");
            return Err(D::Error::custom("an open request costs 1 or more"));
        }
        let millis = lasts.get().unwrap_or(USUAL_SLOT.millis_up());
        if !LIVES_MS.contains(&millis) {
            trace.at("ttl_ms");
            let (least, most) = (LIVES_MS.start(), LIVES_MS.end());
            return Err(D::Error::custom(format_args!(
                "{millis} is no life of a slot, write {least} to {most}"
            )));
        }
        Ok(Acquire {
            request,
            lasts: Nanos::from_millis(millis),
            receipt: wish.receipt,
        })
    }
}

/// An object with one text of this name.
pub(super) struct OneText<'t>(pub(super) &'t Trace, pub(super) &'static str);

impl<'de> DeserializeSeed<'de> for OneText<'_> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneText<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a {}", self.1)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let OneText(trace, name) = self;
        let mut text = None;
        while let Some(Text(field)) = map.next_key()? {
            trace.at(name);
            if field != name {
                trace.at_unknown(&field);
                let known = format_args!("unknown field, write {name}");
                return Err(A::Error::custom(known));
            }
            let Text(value) = map.next_value()?;
            if text.replace(value).is_some() {
                return Err(A::Error::custom("given twice"));
            }
        }
        trace.at(name);
        text.ok_or_else(|| A::Error::custom("missing"))
    }
}
