//! The commands that are decided by rules, and their replies. Pure.
//!
//! ```text
//! TG.CHECK name value [name value ...] [WITH [COST n] [COSTS unit n] ... [RECEIPT]]
//! ```
//!
//! Names and values alternate, so a value is never taken for a keyword of the command. In the place of a name, `with`
//! in any case other than capitals is rejected: its options would be read as attributes, and their costs not charged.
//! The conditions on attributes and costs are the same for all edges and defined in `common`.

use std::borrow::Cow;

use tidegate_core::algorithms::Retry;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::engine::{Decision, DecisionKind};
use tidegate_rules::request::{Edge, Request};

use super::reply::{self, Protocol, echo, saturating_i64};
use super::wire::Arguments;
use crate::decider::{ChargeScope, CheckOptions};
use crate::edges::common::check_body::{CheckRequest, MAX_COSTS};
use crate::edges::common::{AttributeBuilder, check_name};

/// The fields of a reply. All are always present, in the same order.
const REPLY_FIELDS: usize = 10;

/// Parses a request, or returns the error text.
pub(super) fn parse<'b>(arguments: Arguments<'b>) -> Result<CheckRequest<'b>, String> {
    let mut request = Request {
        edge: Edge::Resp,
        // A client of this edge waits for the decision and cannot be delayed.
        max_delay: Some(Nanos::ZERO),
        ..Request::default()
    };
    let mut words = arguments.into_iter().skip(1);
    attributes(&mut words, &mut request)?;
    let options = options(&mut words, &mut request)?;
    Ok(CheckRequest { request, options })
}

/// Parses names and values up to `WITH` or the end.
fn attributes<'b>(words: &mut impl Iterator<Item = Cow<'b, [u8]>>, request: &mut Request<'b>) -> Result<(), String> {
    let mut attributes = AttributeBuilder::of(request);
    while let Some(name) = words.next() {
        if *name == *b"WITH" {
            return Ok(());
        }
        let shown = echo(&name);
        let error = |reason: String| format!("ERR attribute '{shown}': {reason}");
        if name.eq_ignore_ascii_case(b"WITH") {
            return Err(error("options begin with WITH, in capitals".to_owned()));
        }
        attributes.count_one().map_err(|reason| format!("ERR {reason}"))?;
        let name = text(name).map_err(error)?;
        check_name(&name).map_err(error)?;
        let value = words.next().ok_or_else(|| error("has no value".to_owned()))?;
        let value = text(value).map_err(error)?;
        attributes.add(name, value).map_err(error)?;
    }
    Ok(())
}

/// Parses the options after `WITH`.
fn options<'b>(
    words: &mut impl Iterator<Item = Cow<'b, [u8]>>,
    request: &mut Request<'b>,
) -> Result<CheckOptions, String> {
    let (mut cost, mut receipt) = (None, false);
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"RECEIPT") {
            receipt = true;
        } else if word.eq_ignore_ascii_case(b"COST") {
            let units = number(words.next()).ok_or("ERR COST needs a whole number, 0 or more")?;
            if cost.replace(units).is_some() {
                return Err("ERR COST is given twice".to_owned());
            }
        } else if word.eq_ignore_ascii_case(b"COSTS") {
            let unit = words.next().ok_or("ERR COSTS needs a unit and a whole number")?;
            let shown = echo(&unit);
            let error = |reason: String| format!("ERR COSTS '{shown}': {reason}");
            let unit = text(unit).map_err(error)?;
            check_name(&unit).map_err(error)?;
            if request.costs.len() == MAX_COSTS {
                return Err(format!("ERR more than {MAX_COSTS} units"));
            }
            if request.costs.iter().any(|(known, _)| *known == unit) {
                return Err(error("given twice".to_owned()));
            }
            let missing = || error("needs a whole number, 0 or more".to_owned());
            let units = number(words.next()).ok_or_else(missing)?;
            request.costs.push((unit, Cost::new(units)));
        } else {
            let shown = echo(&word);
            return Err(format!("ERR '{shown}' after WITH; write COST, COSTS or RECEIPT"));
        }
    }
    request.cost = cost.and_then(Cost::new);
    Ok(CheckOptions { scope: ChargeScope::of_cost(cost), receipt })
}

/// Text, borrowed if the argument is.
fn text(bytes: Cow<'_, [u8]>) -> Result<Cow<'_, str>, String> {
    let not_utf8 = || "is not UTF-8".to_owned();
    match bytes {
        Cow::Borrowed(bytes) => {
            let text = std::str::from_utf8(bytes).map_err(|_| not_utf8())?;
            Ok(Cow::Borrowed(text))
        }
        Cow::Owned(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| not_utf8())?;
            Ok(Cow::Owned(text))
        }
    }
}

fn number(word: Option<Cow<'_, [u8]>>) -> Option<u64> {
    let word = word?;
    let digits = word.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(&word).ok()?;
    digits.then(|| text.parse().ok())?
}

/// Writes the reply of a decision.
pub(super) fn write_decision(
    out: &mut Vec<u8>,
    protocol: Protocol,
    decision: &Decision,
    id: &str,
    receipt: Option<&str>,
) {
    let binding = decision.binding();
    let figures = binding.as_ref().map(|limit| limit.reading.figures);
    let delay = match decision.kind() {
        DecisionKind::Delay(delay) => delay.millis_up(),
        _ => 0,
    };
    reply::map(out, protocol, REPLY_FIELDS);
    let mut number = |name: &str, number: Option<i64>| {
        reply::bulk(out, name.as_bytes());
        match number {
            Some(number) => reply::integer(out, number),
            None => reply::null(out, protocol),
        }
    };
    number("allowed", Some(i64::from(decision.allowed())));
    let capacity = binding.as_ref().map(|limit| limit.limit.capacity());
    number("limit", capacity.map(saturating_i64));
    number("remaining", figures.map(|figures| saturating_i64(figures.remaining)));
    number("retry_after_ms", Some(retry_after_ms(decision)));
    let reset = figures.map(|figures| saturating_i64(figures.reset_after.millis_up()));
    number("reset_after_ms", reset);
    number("delay_ms", Some(saturating_i64(delay)));
    let mut text = |name: &str, text: Option<&str>| {
        reply::bulk(out, name.as_bytes());
        match text {
            Some(text) => reply::bulk(out, text.as_bytes()),
            None => reply::null(out, protocol),
        }
    };
    text("rule", binding.as_ref().map(|limit| limit.rule.name().as_str()));
    text("source", Some(decision.source().name()));
    text("receipt", receipt);
    text("id", Some(id));
}

/// Milliseconds until a retry can succeed: 0 if the request is allowed, -1 if no wait is known to help.
fn retry_after_ms(decision: &Decision) -> i64 {
    match decision.kind() {
        DecisionKind::Allow | DecisionKind::Delay(_) => 0,
        DecisionKind::Deny(Retry::After(wait)) => saturating_i64(wait.millis_up()),
        DecisionKind::Block { until: Some(until) } => saturating_i64(until.since(decision.at()).millis_up()),
        DecisionKind::Deny(Retry::Never) | DecisionKind::Unavailable | DecisionKind::Block { until: None } => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&'static [u8]]) -> Result<CheckRequest<'static>, String> {
        let name = [&b"TG.CHECK"[..]];
        let all = name.iter().chain(words);
        parse(all.map(|word| Cow::Borrowed(*word)).collect())
    }

    fn parse_line(line: &'static str) -> Result<CheckRequest<'static>, String> {
        parse_words(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn names_and_values_alternate_until_with() {
        let parsed = parse_line("ip 203.0.113.9 api_key k1 path WITH as with WITH cost 3 COSTS tokens 7 Receipt");
        let CheckRequest { request, options } = parsed.unwrap();
        assert_eq!(request.ip, Some("203.0.113.9".parse().unwrap()));
        let digest = request.api_key.unwrap().digest;
        assert_eq!(digest[..3], [0x6a, 0xb9, 0xf1], "sha256 of k1");
        assert_eq!(request.text("path"), Some("/WITH"), "in normal form");
        assert_eq!(request.text("as"), Some("with"));
        assert_eq!(request.cost.map(Cost::get), Some(3));
        assert_eq!(request.costs.len(), 1);
        assert_eq!(request.max_delay, Some(Nanos::ZERO));
        assert!(options.receipt && options.scope == ChargeScope::All);
        let zero = parse_line("a b WITH COST 0 COSTS t 1").unwrap();
        assert_eq!(zero.options.scope, ChargeScope::Units);
        assert_eq!(zero.request.costs.len(), 1);
        assert!(parse_words(&[]).is_ok(), "global rules need no attribute");
    }

    #[test]
    fn every_error_names_its_place() {
        let cases = [
            ("ip", "ERR attribute 'ip': has no value"),
            ("ip x", "ERR attribute 'ip': "),
            ("a 1 a 2", "ERR attribute 'a': given twice"),
            ("a  a 2", "ERR attribute 'a': given twice"),
            ("a 1 WITH", ""),
            ("a 1 with COST 3", "ERR attribute 'with': options begin with WITH"),
            ("method POST\t", "ERR attribute 'method': has white space"),
            ("a 1 WITH COST", "ERR COST needs a whole number"),
            ("a 1 WITH COST -1", "ERR COST needs a whole number"),
            ("a 1 WITH COST +1", "ERR COST needs a whole number"),
            ("a 1 WITH COST 1 COST 1", "ERR COST is given twice"),
            ("a 1 WITH COSTS", "ERR COSTS needs a unit"),
            ("a 1 WITH COSTS t", "ERR COSTS 't': needs a whole number"),
            ("a 1 WITH COSTS t 1 COSTS t 1", "ERR COSTS 't': given twice"),
            ("a 1 WITH x 1", "ERR 'x' after WITH; write COST, COSTS or RECEIPT"),
        ];
        for (words, want) in cases {
            let error = parse_line(words).err().unwrap_or_default();
            assert!(error.starts_with(want), "{words} gives {error}");
            assert_eq!(error.is_empty(), want.is_empty(), "{words} gives {error}");
        }
        let error = parse_words(&[b"a\xff", b"1"]).unwrap_err();
        assert_eq!(error, "ERR attribute 'a\\xff': is not UTF-8");
        let long: &'static [u8] = &[b'x'; 5_000];
        assert!(parse_words(&[b"a", long]).unwrap_err().contains("at most 4096"));
        assert!(parse_words(&[long, b"a"]).unwrap_err().contains("1 to 128 bytes"));
    }
}
