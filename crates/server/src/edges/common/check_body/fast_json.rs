//! Parses the bodies that most clients send, and gives up on all others.
//!
//! Invariant: a body that this module parses, `json` parses in the same way. At the
//! first unexpected byte (an escape, a unit, an error) this parser returns `None`. Then `json`, the only one that
//! reports errors, starts from the beginning. This parser takes a quarter fewer instructions.

use std::borrow::Cow;

use tidegate::http::json_plain;
use tidegate_core::units::Cost;
use tidegate_rules::request::Request;

use super::{CheckBatch, CheckBody, CheckRequest, EMPTY_REQUEST, MAX_ITEMS};
use crate::decider::{ChargeScope, CheckOptions};
use crate::edges::common::{AttributeBuilder, check_name};

/// The request, or the list of about `expected_items`, in `body`.
pub(super) fn parse_check(body: &str, expected_items: usize) -> Option<CheckBody<'_>> {
    let mut parser = FastJsonParser { body, at: 0 };
    let parsed = match parser.next()? {
        b'{' => {
            let mut request = EMPTY_REQUEST;
            let options = parser.request(&mut request)?;
            CheckBody::One(Box::new(CheckRequest { request, options }))
        }
        b'[' => CheckBody::Many(parser.requests(expected_items)?),
        _ => return None,
    };
    parser.next().is_none().then_some(parsed)
}

struct FastJsonParser<'b> {
    body: &'b str,
    at: usize,
}

impl<'b> FastJsonParser<'b> {
    /// Requests after the opening bracket.
    fn requests(&mut self, expected_items: usize) -> Option<CheckBatch<'b>> {
        let mut batch =
            CheckBatch { requests: Vec::with_capacity(expected_items), options: Vec::with_capacity(expected_items) };
        loop {
            self.expect(b'{')?;
            let options = self.request(batch.requests.push_mut(EMPTY_REQUEST))?;
            batch.options.push(options);
            if batch.options.len() > MAX_ITEMS {
                return None;
            }
            if self.closes_with(b']')? {
                return Some(batch);
            }
        }
    }

    /// One request after the opening brace.
    fn request(&mut self, request: &mut Request<'b>) -> Option<CheckOptions> {
        let (mut cost, mut receipt, mut attributes) = (None, None, false);
        loop {
            match self.name()? {
                "attributes" if !attributes => {
                    attributes = true;
                    self.attributes(AttributeBuilder::of(request))?;
                }
                "cost" if cost.is_none() => cost = Some(self.number()?),
                "receipt" if receipt.is_none() => receipt = Some(self.boolean()?),
                _ => return None,
            }
            if self.closes_with(b'}')? {
                break;
            }
        }
        request.cost = cost.and_then(Cost::new);
        Some(CheckOptions { scope: ChargeScope::of_cost(cost), receipt: receipt == Some(true) })
    }

    fn attributes(&mut self, mut attributes: AttributeBuilder<'_, 'b>) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let name = self.name()?;
            check_name(name).ok()?;
            attributes.count_one().ok()?;
            self.expect(b'"')?;
            let value = self.text()?;
            attributes.add(Cow::Borrowed(name), Cow::Borrowed(value)).ok()?;
            if self.closes_with(b'}')? {
                return Some(());
            }
        }
    }

    /// `"name":`
    fn name(&mut self) -> Option<&'b str> {
        self.expect(b'"')?;
        let name = self.text()?;
        self.expect(b':')?;
        Some(name)
    }

    /// A string without escapes, after its opening quote.
    fn text(&mut self) -> Option<&'b str> {
        let rest = self.body.as_bytes().get(self.at..)?;
        let length = json_plain(rest);
        if *rest.get(length)? != b'"' {
            return None;
        }
        let text = self.body.get(self.at..self.at + length)?;
        self.at += length + 1;
        Some(text)
    }

    /// A whole number.
    fn number(&mut self) -> Option<u64> {
        let first = self.next()?;
        let mut value = u64::from(digit(first)?);
        while let Some(digit) = self.peek().and_then(digit) {
            // JSON has no leading zeros.
            if first == b'0' {
                return None;
            }
            value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
            self.at += 1;
        }
        Some(value)
    }

    fn boolean(&mut self) -> Option<bool> {
        let (rest, value) = match self.next()? {
            b't' => ("rue", true),
            b'f' => ("alse", false),
            _ => return None,
        };
        self.body.get(self.at..)?.strip_prefix(rest)?;
        self.at += rest.len();
        Some(value)
    }

    /// Whether the current object or list ends here with `close`, or continues after a comma.
    fn closes_with(&mut self, close: u8) -> Option<bool> {
        match self.next()? {
            b',' => Some(false),
            byte => (byte == close).then_some(true),
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// The next byte that is not white space.
    #[inline(always)]
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = self.peek()?;
            self.at += 1;
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Some(byte);
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.as_bytes().get(self.at).copied()
    }
}

fn digit(byte: u8) -> Option<u8> {
    byte.is_ascii_digit().then(|| byte - b'0')
}
