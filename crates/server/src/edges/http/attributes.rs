//! The attributes of a request, whichever reader and whichever edge finds them: bounded, each given once,
//! and in normal form.

use std::borrow::Cow;

use tidegate::identity::{Digest, ip};
use tidegate_core::request::{ApiKey, Request, normal_name, normal_value};

use super::wire::{LONGEST_NAME, LONGEST_VALUE, MOST_ATTRIBUTES};

/// A request that is being given its attributes.
pub(crate) struct Attributes<'r, 'b> {
    request: &'r mut Request<'b>,
    count: usize,
    has_key: bool,
}

impl<'r, 'b> Attributes<'r, 'b> {
    pub(crate) fn of(request: &'r mut Request<'b>) -> Self {
        Attributes {
            request,
            count: 0,
            has_key: false,
        }
    }

    /// Makes room for one more.
    pub(crate) fn one_more(&mut self) -> Result<(), String> {
        if self.count == MOST_ATTRIBUTES {
            return Err(format!("more than {MOST_ATTRIBUTES} attributes"));
        }
        self.count += 1;
        Ok(())
    }

    /// Adds one. Its name has been checked.
    pub(crate) fn add(&mut self, name: Cow<'b, str>, value: Cow<'b, str>) -> Result<(), String> {
        if value.len() > LONGEST_VALUE {
            return Err(format!("a value has at most {LONGEST_VALUE} bytes"));
        }
        let request = &mut *self.request;
        match &*name {
            "ip" if request.ip.is_none() => {
                let address = ip::parse(&value).map_err(|reason| reason.to_string())?;
                request.ip = Some(address);
            }
            "api_key" if !self.has_key => {
                self.has_key = true;
                // An empty key is what a missing header looks like after a template.
                request.api_key = (!value.is_empty()).then(|| digested(&value));
            }
            "ip" | "api_key" => return Err(TWICE.to_owned()),
            other => {
                // No rule would find the client by such a name, and no list its key.
                if let Some(known) = identity_name(other) {
                    return Err(format!("write `{known}`"));
                }
                let name = normal_name(name);
                if request.text(&name).is_some() {
                    return Err(TWICE.to_owned());
                }
                // Such a method or host is none that a rule names.
                if matches!(&*name, "method" | "host") && value.trim_ascii() != &*value {
                    return Err(WHITE_SPACE.to_owned());
                }
                if name == "host" && (value.contains('@') || value.contains("..")) {
                    return Err("is no host; write its name alone".to_owned());
                }
                let value = normal_value(&name, value).map_err(|wrong| wrong.to_string())?;
                request.attributes.push((name, value));
            }
        }
        Ok(())
    }
}

const TWICE: &str = "given twice";
const WHITE_SPACE: &str = "has white space at its beginning or end; leave it out";

/// The attribute of identity that `name` differs from in case only.
fn identity_name(name: &str) -> Option<&'static str> {
    let known = ["ip", "api_key"].into_iter();
    known
        .filter(|known| known.len() == name.len())
        .find(|known| known.eq_ignore_ascii_case(name))
}

/// Whether an attribute or a unit may be called that.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.trim_ascii() != name {
        return Err(WHITE_SPACE.to_owned());
    }
    match name.len() {
        1..=LONGEST_NAME => Ok(()),
        _ => Err(format!("a name has 1 to {LONGEST_NAME} bytes")),
    }
}

/// A key as a request carries it. The key itself goes no further.
pub(crate) fn digested<'a>(key: &str) -> ApiKey<'a> {
    ApiKey {
        digest: *Digest::of(key).as_bytes(),
        tier: None,
        name: None,
    }
}
