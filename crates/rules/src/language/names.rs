//! Names of attributes and units: known ones, and ones that are probably misspelt.
//!
//! A rule with a misspelt name never applies or counts by something else, and nothing else would notice. So a name
//! that differs from a known one by case or by one edit is an error, unless the rules declare it. Other names may be
//! correct: `lint` suggests declaring them.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::diagnostics::quoted;
use super::fields::closest_name;
use super::headers;
use crate::request::{HEADER_PREFIX, PRIORITY, normalize_name};

/// Attributes that edges fill in or treat specially.
pub(super) const BUILT_IN: [&str; 9] =
    ["ip", "user", "api_key", "path", "raw_path", "method", "host", "domain", PRIORITY];

/// Keys that Envoy gives to the entries of its descriptors.
const ENVOY_KEYS: [&str; 6] =
    ["generic_key", "header_match", "query_match", "source_cluster", "destination_cluster", "masked_remote_address"];

/// The value of `by` for one counter for everybody.
pub(crate) const GLOBAL: &str = "global";

/// Envoy's name for the client's address. Edges map it to `ip`.
const REMOTE_ADDRESS: &str = "remote_address";

/// Maximum number of attributes, and of units, that rules declare.
pub(crate) const MAX_DECLARED: usize = 256;

/// Names that the rules declare at the top.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeclaredNames {
    pub(crate) attributes: FxHashSet<Box<str>>,
    pub(crate) units: FxHashSet<Box<str>>,
}

impl DeclaredNames {
    /// Whether the attribute `name` is built in or declared, and so cannot be misspelt.
    pub(crate) fn knows_attribute(&self, name: &str) -> bool {
        name.starts_with(HEADER_PREFIX)
            || BUILT_IN.contains(&name)
            || ENVOY_KEYS.contains(&name)
            || self.attributes.contains(name)
    }

    /// The error for the attribute `name`, if it is probably misspelt.
    fn misspelt_attribute(&self, name: &str) -> Option<String> {
        if self.attributes.contains(name) {
            return None;
        }
        if let Some(near) = headers::correct_spelling(name) {
            return Some(misspelling_message(name, &near, "attributes"));
        }
        if self.knows_attribute(name) {
            return None;
        }
        if name == REMOTE_ADDRESS {
            return Some(format!(
                "`{name}`, which is `ip` in rules; write `ip`, or declare it: `attributes: [{name}]`"
            ));
        }
        let declared = self.attributes.iter().map(|known| &**known);
        let known = BUILT_IN.into_iter().chain(ENVOY_KEYS).chain(declared);
        let near = find_within_one_edit(name, known).map(str::to_owned);
        Some(misspelling_message(name, &near.or_else(|| correct_header_prefix(name))?, "attributes"))
    }
}

/// `Header.x-team` and `headers.x-team` are meant to be `header.x-team`.
fn correct_header_prefix(name: &str) -> Option<String> {
    let (prefix, header) = name.split_once('.')?;
    let known = HEADER_PREFIX.trim_end_matches('.');
    find_within_one_edit(prefix, [known])?;
    Some(format!("{HEADER_PREFIX}{}", header.to_ascii_lowercase()))
}

fn misspelling_message(name: &str, near: &str, field: &str) -> String {
    let by = if name.eq_ignore_ascii_case(near) { "case" } else { "one letter" };
    format!("`{name}`, which differs from `{near}` by {by}; write `{near}`, or declare it: `{field}: [{name}]`")
}

/// Names seen while rules are read, each checked and stored once.
pub(crate) struct KnownNames<'s> {
    declared: &'s DeclaredNames,
    attributes: FxHashMap<Box<str>, Result<Arc<str>, String>>,
    units: FxHashMap<Box<str>, Arc<str>>,
}

impl<'s> KnownNames<'s> {
    pub(crate) fn new(declared: &'s DeclaredNames) -> Self {
        KnownNames { declared, attributes: FxHashMap::default(), units: FxHashMap::default() }
    }

    /// The attribute that a rule calls `name`, as requests carry it, or the error for the name.
    pub(crate) fn attribute(&mut self, name: &str) -> Result<Arc<str>, String> {
        if let Some(seen) = self.attributes.get(name) {
            return seen.clone();
        }
        let found =
            attribute_name(name).and_then(|normal| self.declared.misspelt_attribute(&normal).map_or(Ok(normal), Err));
        self.attributes.insert(name.into(), found.clone());
        found
    }

    /// As [`Self::attribute`], for a name in `by`, where `global` has a meaning of its own. `Global` or `gobal` would
    /// be an attribute that no request has, and the limit for all clients together would become one for each address.
    pub(crate) fn attribute_in_by(&mut self, name: &str) -> Result<Arc<str>, String> {
        let found = self.attribute(name)?;
        let is_global = find_within_one_edit(&found, [GLOBAL]).is_some();
        if is_global && !self.declared.knows_attribute(&found) {
            return Err(misspelling_message(&found, GLOBAL, "attributes"));
        }
        Ok(found)
    }

    /// The unit that a rule calls `name`, or the error for the name. If two units are nearly the same, an undeclared
    /// one is probably meant to be the other.
    pub(crate) fn unit(&mut self, name: &str) -> Result<Arc<str>, String> {
        if let Some(seen) = self.units.get(name) {
            return Ok(Arc::clone(seen));
        }
        check_unit(name)?;
        let seen = self.units.keys().take(MAX_DECLARED);
        let known = self.declared.units.iter().chain(seen).map(|known| &**known);
        if !self.declared.units.contains(name)
            && let Some(near) = find_within_one_edit(name, known)
        {
            return Err(misspelling_message(name, near, "units"));
        }
        let unit: Arc<str> = name.into();
        self.units.insert(name.into(), Arc::clone(&unit));
        Ok(unit)
    }
}

/// The name of an attribute as requests carry it.
pub(crate) fn attribute_name(name: &str) -> Result<Arc<str>, String> {
    headers::check(&name.to_ascii_lowercase())?;
    let bare_header = name.len() == HEADER_PREFIX.len() && name.eq_ignore_ascii_case(HEADER_PREFIX);
    if !is_name(name) || bare_header || matches!(name, GLOBAL | "not") {
        return Err(format!(
            "{}, which is no name of an attribute; write ip, user, api_key, path, method, \
             header.NAME or a name of your own of letters, digits, `_`, `-` and `.`",
            quoted(name)
        ));
    }
    Ok((&*normalize_name(name.into())).into())
}

fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= 100 && name.bytes().all(fits)
}

/// Whether a unit may be called `name`.
pub(crate) fn check_unit(name: &str) -> Result<(), String> {
    if is_name(name) && name != "requests" {
        return Ok(());
    }
    Err(format!("{}, which is no unit; write a name such as tokens, or nothing to count requests", quoted(name)))
}

/// The known name that `name` was probably meant to be: one within one edit, otherwise one that differs in a few
/// letters.
pub fn suggest_name<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    find_within_one_edit(name, known.iter().copied()).or_else(|| closest_name(name, known))
}

/// The first of the `known` names that differs from `name` by case, by one edit, or by both.
pub fn find_within_one_edit<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.as_bytes();
    let mut known = known.into_iter();
    known.find(|known| within_one_edit(name, known.as_bytes()))
}

/// Whether one letter inserted, dropped, changed or swapped with the next turns `a` into `b`, whatever
/// their case.
fn within_one_edit(a: &[u8], b: &[u8]) -> bool {
    if a.len().abs_diff(b.len()) > 1 {
        return false;
    }
    let same = |(a, b): &(&u8, &u8)| a.eq_ignore_ascii_case(b);
    let start = a.iter().zip(b).take_while(same).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    match (a, b) {
        ([a, c], [b, d]) => a.eq_ignore_ascii_case(d) && c.eq_ignore_ascii_case(b),
        _ => a.len() <= 1 && b.len() <= 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, want: Option<&str>) {
        let declared =
            DeclaredNames { attributes: ["org".into(), "id".into()].into_iter().collect(), ..DeclaredNames::default() };
        let wrong = KnownNames::new(&declared).attribute(name).err();
        let meant = |near: &str| wrong.as_deref().is_some_and(|w| w.contains(&format!("write `{near}`")));
        match want {
            None => assert_eq!(wrong, None, "{name}"),
            Some(near) => assert!(meant(near), "{name} is {near}: {wrong:?}"),
        }
    }

    #[test]
    fn a_name_within_one_edit_of_a_known_one_is_misspelt() {
        for (name, near) in [
            ("IP", "ip"),
            ("pi", "ip"),
            ("ips", "ip"),
            ("pth", "path"),
            ("Path", "path"),
            ("apth", "path"),
            ("apikey", "api_key"),
            ("apiKey", "api_key"),
            ("api-key", "api_key"),
            ("API_KEY", "api_key"),
            ("usr", "user"),
            ("methods", "method"),
            ("orgs", "org"),
            ("Org", "org"),
            ("generic-key", "generic_key"),
            ("remote_address", "ip"),
            ("Header.X-Team", "header.x-team"),
            ("headers.x-team", "header.x-team"),
        ] {
            check(name, Some(near));
        }
    }

    #[test]
    fn a_known_name_and_one_far_from_all_are_not() {
        for name in [
            "ip",
            "user",
            "path",
            "raw_path",
            "host",
            "domain",
            "priority",
            "header.Pth",
            "org",
            "id",
            "plan",
            "tenant",
            "account",
            "generic_key",
            "team.name",
        ] {
            check(name, None);
        }
    }

    #[test]
    fn two_units_that_are_nearly_the_same_must_be_declared() {
        let undeclared = DeclaredNames::default();
        let mut units = KnownNames::new(&undeclared);
        assert!(units.unit("tokens").is_ok() && units.unit("images").is_ok());
        assert!(units.unit("token").is_err_and(|wrong| wrong.contains("write `tokens`")));
        let declared = DeclaredNames {
            units: ["tokens".into(), "token".into()].into_iter().collect(),
            ..DeclaredNames::default()
        };
        let mut units = KnownNames::new(&declared);
        assert!(units.unit("tokens").is_ok() && units.unit("token").is_ok());
        assert!(units.unit("Tokens").is_err());
    }
}
