//! `POST /json`: the same request and response in the JSON form of their messages.
//!
//! Names are accepted in JSON form and as in the messages, numbers also as text, and units by name or by number. An
//! unknown name is rejected. Default values are not written.

use bytes::Bytes;
use http::StatusCode;
use hyper::body::Incoming;
use serde_json::Value;
use tidegate_rules::envoy::{DescribedRequest, Descriptor, DescriptorEntry, DescriptorOverride, Hits, Unit};
use tidegate_rules::request::Edge;

use super::deadline::CallerDeadline;
use super::error::EnvoyError;
use super::serve::{EnvoyEdge, EnvoyResult};
use super::wire::{self, EnvoyRequest, OwnHits, check_length, too_many, value};
use crate::edges::common::api_error::text_page;
use crate::net::{HttpResponse, body};

mod response;

/// Maximum size of a body. Bodies are written by hand, so the limit can be lower than for Envoy's messages, and JSON
/// takes several times its size in memory.
pub(crate) const MAX_BODY_BYTES: usize = body::MAX_SMALL_BODY;

/// Handles one request.
pub(crate) async fn respond(edge: &EnvoyEdge, body: Incoming) -> HttpResponse {
    let result = match body::read(body, MAX_BODY_BYTES).await {
        Ok(body) => edge.decider.run(decide(edge, &body)).await,
        Err(error) => Err(EnvoyError::Body(error)),
    };
    edge.record_call(&result);
    let (status, kind, body) = match result {
        Ok((status, body)) => (status, "application/json", Bytes::from(body)),
        // The same for every error, and with a newline, as in the reference service.
        Err(_) => (400, "text/plain; charset=utf-8", "Bad Request\n".into()),
    };
    edge.count_response(status);
    text_page(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), kind, body)
}

async fn decide(edge: &EnvoyEdge, body: &[u8]) -> EnvoyResult<Vec<u8>> {
    let value: Value = serde_json::from_slice(body).map_err(|_| EnvoyError::Json("it is not JSON"))?;
    let view = edge.decider.view_for(Edge::Envoy)?;
    let envoy_request = parse_request(&value, edge.options.max_descriptors)?;
    edge.decide(&view, &envoy_request, CallerDeadline::unbounded(), response::to_json).await
}

fn parse_request(value: &Value, max_descriptors: usize) -> Result<EnvoyRequest<'_>, EnvoyError> {
    let mut described = DescribedRequest::default();
    let mut own = Vec::new();
    let mut hits_addend = 0;
    for (name, value) in members(value)? {
        match name {
            "domain" => described.domain = check_length("domain", text(value)?, wire::MAX_KEY_BYTES)?,
            "descriptors" => {
                let values = list(value, "descriptors", max_descriptors)?;
                for (at, value) in values.iter().enumerate() {
                    let (descriptor, hits) = descriptor(value, at)?;
                    described.descriptors.push(descriptor);
                    own.push(hits);
                }
            }
            "hitsAddend" | "hits_addend" => hits_addend = number_u32(value)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    for (descriptor, own) in described.descriptors.iter_mut().zip(own) {
        descriptor.hits = wire::hits(own, hits_addend);
    }
    wire::validate(EnvoyRequest { described, hits_addend })
}

fn descriptor(value: &Value, at: usize) -> Result<(Descriptor<'_>, OwnHits), EnvoyError> {
    let mut descriptor = Descriptor { entries: Default::default(), limit_override: None, hits: Hits::Check };
    let mut hits = OwnHits::default();
    for (name, value) in members(value)? {
        match name {
            "entries" => {
                let what = "entries in one descriptor";
                for value in list(value, what, wire::MAX_ENTRIES)? {
                    descriptor.entries.push(entry(value)?);
                }
            }
            "limit" => descriptor.limit_override = Some(own_limit(value, at)?),
            "hitsAddend" | "hits_addend" => hits.addend = Some(number(value)?),
            "isNegativeHits" | "is_negative_hits" => {
                let yes = value.as_bool();
                hits.is_negative = yes.ok_or(EnvoyError::Json("it is neither true nor false"))?;
            }
            _ => return Err(UNKNOWN_NAME),
        }
    }
    Ok((descriptor, hits))
}

fn entry(entry: &Value) -> Result<DescriptorEntry<'_>, EnvoyError> {
    let (mut key, mut value) = ("", "");
    for (name, member) in members(entry)? {
        match name {
            "key" => key = check_length("key", text(member)?, wire::MAX_KEY_BYTES)?,
            "value" => value = text(member)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    Ok((key, value::decode(value.as_bytes())))
}

fn own_limit(value: &Value, descriptor: usize) -> Result<DescriptorOverride, EnvoyError> {
    let (mut requests, mut found) = (0, None);
    for (name, value) in members(value)? {
        match name {
            "requestsPerUnit" | "requests_per_unit" => requests = number_u32(value)?,
            "unit" => found = unit(value)?,
            _ => return Err(UNKNOWN_NAME),
        }
    }
    let unit = found.ok_or(EnvoyError::UnknownUnit { descriptor, unit: 0 })?;
    Ok(DescriptorOverride { requests, unit })
}

fn unit(value: &Value) -> Result<Option<Unit>, EnvoyError> {
    match value {
        Value::String(name) => {
            let mut units = Unit::ALL.into_iter();
            Ok(units.find(|unit| unit.name().to_ascii_uppercase() == *name))
        }
        value => Ok(wire::unit(number(value)?)),
    }
}

const UNKNOWN_NAME: EnvoyError = EnvoyError::Json("it has an unknown field");

/// The members of an object. A member that is null counts as absent.
fn members(value: &Value) -> Result<impl Iterator<Item = (&str, &Value)>, EnvoyError> {
    let members = value.as_object();
    let members = members.ok_or(EnvoyError::Json("an object is expected"))?;
    let present = members.iter().filter(|(_, value)| !value.is_null());
    Ok(present.map(|(name, value)| (name.as_str(), value)))
}

fn list<'j>(value: &'j Value, what: &'static str, max: usize) -> Result<&'j [Value], EnvoyError> {
    match value.as_array() {
        None => Err(EnvoyError::Json("a list is expected")),
        Some(values) if values.len() > max => Err(too_many(what, max)),
        Some(values) => Ok(values),
    }
}

fn text(value: &Value) -> Result<&str, EnvoyError> {
    value.as_str().ok_or(EnvoyError::Json("a text is expected"))
}

fn number(value: &Value) -> Result<u64, EnvoyError> {
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
    number.ok_or(EnvoyError::Json("a whole number is expected"))
}

fn number_u32(value: &Value) -> Result<u32, EnvoyError> {
    u32::try_from(number(value)?).map_err(|_| EnvoyError::Json("a number has more than 32 bits"))
}

#[cfg(test)]
mod tests;
