//! HTTP methods, and texts that are probably meant to be one.

use crate::language::glob::Glob;
use crate::language::names::find_within_one_edit;
use crate::request::normalize_method;

/// Methods of most requests. A text within one letter of one of these is a mistake.
const COMMON_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// The other methods in the IANA registry, and two that servers know although they are not registered.
const OTHER_METHODS: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY LABEL LINK LOCK MERGE MKACTIVITY \
    MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE ORDERPATCH PRI PROPFIND PROPPATCH PURGE QUERY REBIND REPORT SEARCH \
    TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL";

/// Separators that people write between several values in one text.
const SEPARATORS: [char; 5] = [',', '|', ';', ' ', '\t'];

/// What is wrong with a method that a rule matches, if it is probably not meant.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("but no request has an empty method; write one such as POST".to_owned());
    }
    if text.contains(SEPARATORS) {
        return Err("which is several methods in one text; write a list: [GET, POST]".to_owned());
    }
    if let Some(method) = text.strip_prefix('!') {
        let method = normalize_method(method);
        return Err(format!("which has a `!`; write `not: {{ method: {} }}`", method.escape_debug()));
    }
    let method = normalize_method(text);
    if is_known(&method) || Glob::is_glob(text) {
        return Ok(());
    }
    match find_within_one_edit(&method, COMMON_METHODS) {
        Some(near) => Err(format!("which differs from {near} by one letter; write {near}")),
        None => Ok(()),
    }
}

/// Every known HTTP method.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    COMMON_METHODS.into_iter().chain(OTHER_METHODS.split_ascii_whitespace())
}

/// Whether `method`, in capitals, is a known HTTP method.
pub(crate) fn is_known(method: &str) -> bool {
    all().any(|known| known == method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_method_passes_and_near_misses_of_common_ones_do_not() {
        for method in all() {
            assert_eq!(check(method), Ok(()), "{method}");
            assert_eq!(check(&method.to_lowercase()), Ok(()), "{method}");
        }
        for wrong in ["", "GET;POST", "PSOT", "GTE", "DELTE", "PUTT", "OPTION", "GET,POST", "GET POST", "GET|HEAD"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        for unusual in ["P*", "CreateOrder", "FETCH"] {
            assert_eq!(check(unusual), Ok(()), "{unusual}");
        }
    }
}
