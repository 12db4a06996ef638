//! The full parser of checks.

use std::borrow::Cow;

use tidegate_core::units::Cost;
use tidegate_rules::request::Request;

use super::{CheckBatch, CheckBody, CheckRequest, EMPTY_REQUEST, MAX_ATTRIBUTES, MAX_COSTS, MAX_ITEMS};
use crate::decider::{ChargeScope, CheckOptions, InputError};
use crate::edges::common::json::{self, JsonPairs, List, Object, Text, WholeNumber, given};
use crate::edges::common::{AttributeBuilder, check_name};

/// `{"ip": "...", ...}`
pub(crate) type AttributePairs<'a> = JsonPairs<'a, Text<'a>, MAX_ATTRIBUTES>;
/// `{"tokens": 1500}`
pub(crate) type CostPairs<'a> = JsonPairs<'a, WholeNumber, MAX_COSTS>;

/// Declares the JSON body of a request: attributes and costs, which all have, and the fields of its own.
macro_rules! request_json {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name<'a> {
            #[serde(borrow, default)]
            attributes: $crate::edges::common::check_body::AttributePairs<'a>,
            #[serde(default, deserialize_with = "given")]
            cost: Option<WholeNumber>,
            #[serde(borrow, default)]
            costs: $crate::edges::common::check_body::CostPairs<'a>,
            $($(#[$attribute])* $field: $type,)*
        }
    };
}
pub(crate) use request_json;

request_json!(CheckJson {
    #[serde(default)]
    receipt: bool,
});

pub(super) fn parse_check(body: &[u8]) -> Result<CheckBody<'_>, InputError> {
    if !body.trim_ascii_start().starts_with(b"[") {
        let check_request = json::parse_object::<CheckJson<'_>>(body)?.build()?;
        return Ok(CheckBody::One(Box::new(check_request)));
    }
    let List(items) = json::parse::<List<Object<CheckJson<'_>>, MAX_ITEMS>>(body)?;
    let mut batch = CheckBatch { requests: Vec::with_capacity(items.len()), options: Vec::with_capacity(items.len()) };
    for (at, Object(item)) in items.into_iter().enumerate() {
        let CheckRequest { request, options } = item.build().map_err(|error| error.inside(&format!("[{at}]")))?;
        batch.requests.push(request);
        batch.options.push(options);
    }
    Ok(CheckBody::Many(batch))
}

impl<'a> CheckJson<'a> {
    fn build(self) -> Result<CheckRequest<'a>, InputError> {
        let cost = self.cost.map(|WholeNumber(cost)| cost);
        let request = build_request(self.attributes, cost, self.costs)?;
        Ok(CheckRequest { request, options: CheckOptions { scope: ChargeScope::of_cost(cost), receipt: self.receipt } })
    }
}

/// The request with these attributes and costs. A unit that costs 0 is not charged.
pub(crate) fn build_request<'a>(
    attributes: AttributePairs<'a>,
    cost: Option<u64>,
    costs: CostPairs<'a>,
) -> Result<Request<'a>, InputError> {
    let mut request = Request { cost: cost.and_then(Cost::new), ..EMPTY_REQUEST };
    let mut builder = AttributeBuilder::of(&mut request);
    for (name, Text(value)) in attributes.0 {
        let invalid = |name: &str, reason| InputError::new(name, reason).inside("attributes");
        check_name(&name).map_err(|reason| invalid(&name, reason))?;
        let written = name.clone();
        builder.add(name, value).map_err(|reason| invalid(&written, reason))?;
    }
    let costs = parse_costs(costs)?.into_iter();
    request.costs = costs.map(|(unit, units)| (unit, Cost::new(units))).collect();
    Ok(request)
}

/// The units and their costs, 0 included.
pub(crate) fn parse_costs(pairs: CostPairs<'_>) -> Result<Vec<(Cow<'_, str>, u64)>, InputError> {
    let mut costs: Vec<(Cow<'_, str>, u64)> = Vec::with_capacity(pairs.0.len());
    for (unit, WholeNumber(units)) in pairs.0 {
        let is_known = costs.iter().any(|(known, _)| *known == unit);
        let checked = if is_known { Err("given twice".to_owned()) } else { check_name(&unit) };
        checked.map_err(|reason| InputError::new(&*unit, reason).inside("costs"))?;
        costs.push((unit, units));
    }
    Ok(costs)
}
