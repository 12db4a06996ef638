//! `POST /json`: the same request and answer in the JSON form of their messages.
//!
//! Names are read as JSON and as the messages have them, numbers also as text, units by name or by
//! number; a name that is not known is refused, and what is the default is not written.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::Value;
use tidegate_core::described::{Described, Descriptor, DescriptorEntry, Hits, OwnLimit, Unit};
use tidegate_core::request::Edge;

use super::deadline::CallerWait;
use super::error::Fault;
use super::serve::{count, judge};
use super::wire::{self, Asked, OwnHits, short, too_many, value};
use crate::net::body;
use crate::net::connection::Answer;
use crate::service::Service;

mod reply;

/// The most bytes a body may have. People write it by hand, so it need not be as large as what Envoy
/// sends, and JSON takes several times its size in memory.
pub(crate) const LARGEST: usize = body::SMALL;

/// Answers one request.
pub(crate) async fn answer(service: &Service, body: Incoming) -> Answer {
    let answered = match body::read(body, LARGEST).await {
        Ok(body) => service.wait_for(decide(service, &body)).await,
        Err(error) => Err(Fault::Body(error)),
    };
    count(service, &answered);
    let (status, kind, body) = match answered {
        Ok((status, body)) => (status, "application/json", Bytes::from(body)),
        Err(fault) => {
            tracing::debug!(%fault, "no verdict");
            // Whatever the fault, and with a newline: so it is in the reference service.
            (400, "text/plain; charset=utf-8", "Bad Request\n".into())
        }
    };
    service.metrics.answered(Edge::Envoy, status);
    let mut answer = Response::new(body.into());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

async fn decide(service: &Service, body: &[u8]) -> Result<(u16, Vec<u8>), Fault> {
    let value: Value = serde_json::from_slice(body).map_err(|_| Fault::Json("it is no JSON"))?;
    let view = service.limiter.view();
    let asked = asked(&value)?;
    let wait = CallerWait::unbounded();
    judge(service, &view, &asked, wait, reply::written).await
}

/// Reads a request.
fn asked(value: &Value) -> Result<Asked<'_>, Fault> {
    let mut described = Described::default();
    let mut own = Vec::new();
    let mut hits_addend = 0;
    for (name, value) in members(value)? {
        match name {
            "domain" => described.domain = short("domain", text(value)?, wire::LONGEST_KEY)?,
            "descriptors" => {
                let values = list(value, "descriptors", wire::MOST_DESCRIPTORS)?;
                for (at, value) in values.iter().enumerate() {
                    let (descriptor, hits) = descriptor(value, at)?;
                    described.descriptors.push(descriptor);
                    own.push(hits);
                }
            }
            "hitsAddend" | "hits_addend" => hits_addend = narrow(value)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    for (descriptor, own) in described.descriptors.iter_mut().zip(own) {
        descriptor.hits = wire::hits(own, hits_addend);
    }
    wire::complete(Asked {
        described,
        hits_addend,
    })
}

fn descriptor(value: &Value, at: usize) -> Result<(Descriptor<'_>, OwnHits), Fault> {
    let mut descriptor = Descriptor {
        entries: Default::default(),
        own: None,
        hits: Hits::Nothing,
    };
    let mut hits = OwnHits::default();
    for (name, value) in members(value)? {
        match name {
            "entries" => {
                let what = "entries in one descriptor";
                for value in list(value, what, wire::MOST_ENTRIES)? {
                    descriptor.entries.push(entry(value)?);
                }
            }
            "limit" => descriptor.own = Some(own_limit(value, at)?),
            "hitsAddend" | "hits_addend" => hits.addend = Some(number(value)?),
            "isNegativeHits" | "is_negative_hits" => {
                let yes = value.as_bool();
                hits.is_negative = yes.ok_or(Fault::Json("it is neither true nor false"))?;
            }
            _ => return Err(UNKNOWN_NAME),
        }
    }
    Ok((descriptor, hits))
}

fn entry(entry: &Value) -> Result<DescriptorEntry<'_>, Fault> {
    let (mut key, mut value) = ("", "");
    for (name, member) in members(entry)? {
        match name {
            "key" => key = short("key", text(member)?, wire::LONGEST_KEY)?,
            "value" => value = text(member)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    Ok((key, value::read(value.as_bytes())))
}

fn own_limit(value: &Value, descriptor: usize) -> Result<OwnLimit, Fault> {
    let (mut requests, mut found) = (0, None);
    for (name, value) in members(value)? {
        match name {
            "requestsPerUnit" | "requests_per_unit" => requests = narrow(value)?,
            "unit" => found = unit(value)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    let unit = found.ok_or(Fault::NoSuchUnit {
        descriptor,
        unit: 0,
    })?;
    Ok(OwnLimit { requests, unit })
}

fn unit(value: &Value) -> Result<Option<Unit>, Fault> {
    match value {
        Value::String(name) => {
            let mut units = Unit::ALL.into_iter();
            Ok(units.find(|unit| unit.name().to_ascii_uppercase() == *name))
        }
        value => Ok(wire::unit(number(value)?)),
    }
}

const UNKNOWN_NAME: Fault = Fault::Json("a name in it is not known");

/// The members of an object that are there: null is as good as nothing.
fn members(value: &Value) -> Result<impl Iterator<Item = (&str, &Value)>, Fault> {
    let members = value.as_object();
    let members = members.ok_or(Fault::Json("an object is missing"))?;
    let there = members.iter().filter(|(_, value)| !value.is_null());
    Ok(there.map(|(name, value)| (name.as_str(), value)))
}

fn list<'j>(value: &'j Value, what: &'static str, most: usize) -> Result<&'j [Value], Fault> {
    match value.as_array() {
        None => Err(Fault::Json("a list is missing")),
        Some(values) if values.len() > most => Err(too_many(what, most)),
        Some(values) => Ok(values),
    }
}

fn text(value: &Value) -> Result<&str, Fault> {
    value.as_str().ok_or(Fault::Json("a text is missing"))
}

fn number(value: &Value) -> Result<u64, Fault> {
    let number = match value {
        Value::String(digits) => digits.parse().ok(),
        Value::Number(number) => number.as_u64().or_else(|| {
            // `1.0` and `1e3` are whole numbers too.
            let float = number.as_f64().filter(|float| float.fract() == 0.0);
            let float = float.filter(|float| (0.0..9e15).contains(float));
            float.map(|float| float as u64)
        }),
        _ => None,
    };
    number.ok_or(Fault::Json("a whole number is missing"))
}

fn narrow(value: &Value) -> Result<u32, Fault> {
    u32::try_from(number(value)?).map_err(|_| Fault::Json("a number has more than 32 bits"))
}

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod tests;
