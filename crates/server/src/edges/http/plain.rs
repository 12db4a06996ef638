//! Reads the bodies that most clients send, and gives up on all others.
//!
//! Kept true: what this understands, [`read`](super::read) understands in the same way. At the first
//! thing that is not expected (an escape, a unit, a fault) it gives nothing, and `read`, which alone
//! says what is wrong, begins anew. It takes a quarter fewer instructions.

use std::borrow::Cow;

use tidegate::http::json_plain;
use tidegate_core::request::Request;
use tidegate_core::units::Cost;

use super::attributes::{Attributes, check_name};
use super::wire::{Ask, Asked, Asks, BLANK, MOST_ITEMS, PlainCost, Wish};

/// The request, or the list of about so many, that `body` holds.
pub(super) fn asked(body: &str, about: usize) -> Option<Asked<'_>> {
    let mut reader = Reader { body, at: 0 };
    let asked = match reader.next()? {
        b'{' => {
            let mut request = BLANK;
            let wish = reader.request(&mut request)?;
            Asked::One(Box::new(Ask { request, wish }))
        }
        b'[' => Asked::Many(reader.requests(about)?),
        _ => return None,
    };
    reader.next().is_none().then_some(asked)
}

struct Reader<'b> {
    body: &'b str,
    at: usize,
}

impl<'b> Reader<'b> {
    /// Requests after the opening bracket.
    fn requests(&mut self, about: usize) -> Option<Asks<'b>> {
        let mut asks = Asks {
            requests: Vec::with_capacity(about),
            wishes: Vec::with_capacity(about),
        };
        loop {
            self.expect(b'{')?;
            let wish = self.request(asks.requests.push_mut(BLANK))?;
            asks.wishes.push(wish);
            if asks.wishes.len() > MOST_ITEMS {
                return None;
            }
            if self.ends(b']')? {
                return Some(asks);
            }
        }
    }

    /// One request after the opening brace.
    fn request(&mut self, request: &mut Request<'b>) -> Option<Wish> {
        let (mut cost, mut receipt, mut attributes) = (None, None, false);
        loop {
            match self.name()? {
                "attributes" if !attributes => {
                    attributes = true;
                    self.attributes(Attributes::of(request))?;
                }
                "cost" if cost.is_none() => cost = Some(self.number()?),
                "receipt" if receipt.is_none() => receipt = Some(self.flag()?),
                _ => return None,
            }
            if self.ends(b'}')? {
                break;
            }
        }
        request.cost = cost.and_then(Cost::new);
        Some(Wish {
            plain_cost: PlainCost::of(cost),
            receipt: receipt == Some(true),
        })
    }

    fn attributes(&mut self, mut attributes: Attributes<'_, 'b>) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let name = self.name()?;
            check_name(name).ok()?;
            attributes.one_more().ok()?;
            self.expect(b'"')?;
            let value = self.text()?;
            attributes
                .add(Cow::Borrowed(name), Cow::Borrowed(value))
                .ok()?;
            if self.ends(b'}')? {
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

    /// A text without escapes, after its opening quote.
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

    fn flag(&mut self) -> Option<bool> {
        let (rest, value) = match self.next()? {
            b't' => ("rue", true),
            b'f' => ("alse", false),
            _ => return None,
        };
        self.body.get(self.at..)?.strip_prefix(rest)?;
        self.at += rest.len();
        Some(value)
    }

    /// Whether what began ends with `close` here, or goes on after a comma.
    fn ends(&mut self, close: u8) -> Option<bool> {
        match self.next()? {
            b',' => Some(false),
            byte => (byte == close).then_some(true),
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// The next byte that is not blank.
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
