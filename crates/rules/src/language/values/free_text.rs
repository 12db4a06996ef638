//! Values of attributes that may be any text: headers, users, attributes of your own.
//!
//! Other programs accept regular expressions, and several values in one text. Here both would be compared as they are
//! and match nothing. In headers whose values have a known form, no value can be such a text: there they are errors.
//! Elsewhere they may be meant, because no text can be marked as literal: there they are warnings.

use crate::request::HEADER_PREFIX;

/// Headers whose values never look like a regular expression.
const STRUCTURED_HEADERS: [&str; 7] =
    ["accept", "accept-encoding", "accept-language", "content-type", "origin", "referer", "user-agent"];

const REGEX_ERROR: &str = "which is a regular expression and would be compared as it is; write `*` for any text, such as \
                    \"*bot*\", and a list for several; case counts, so write both where both are meant: [\"*bot*\", \"*Bot*\"]";

/// What is wrong with `text` as a value or pattern of the attribute `name`, and what to write.
pub(super) fn check(name: &str, text: &str) -> Result<(), String> {
    let header = name.strip_prefix(HEADER_PREFIX);
    let has_form = header.is_some_and(|header| STRUCTURED_HEADERS.contains(&header));
    if has_form && (is_anchored(text) || has_regex_syntax(text) || is_delimited(text)) {
        return Err(REGEX_ERROR.to_owned());
    }
    Ok(())
}

/// Whether `text` as a value of the attribute `name` may be meant as a regular expression.
fn may_be_expression(name: &str, text: &str) -> bool {
    let is_expression = if name.starts_with(HEADER_PREFIX) {
        is_anchored(text) || has_regex_syntax(text)
    } else {
        is_anchored_text(name, text) || has_regex_syntax_in_text(text)
    };
    is_expression || is_delimited(text) && !may_be_path(name)
}

/// The warning about `text` as a value or pattern of the attribute `name`, if it is probably not meant.
pub(super) fn warning(name: &str, text: &str) -> Option<String> {
    let header = name.strip_prefix(HEADER_PREFIX);
    if may_be_expression(name, text) {
        return Some(
            "which may be a regular expression and is compared as it is; write `*` for any text, such as \"*bot*\", \
             and a list for several"
                .to_owned(),
        );
    }
    if has_dot_star(text) {
        return Some(
            "in which `.*` is a dot and any text; write `*` if any text is meant, and `.**` if the dot is".to_owned(),
        );
    }
    if header == Some("content-type") && is_bare_media_type(text) {
        return Some(
            "without what clients send behind it, such as `; charset=utf-8` or `; boundary=x`; write it with `*` at its end"
                .to_owned(),
        );
    }
    if header == Some("origin")
        && let Some(normal) = normal_origin(text)
    {
        return Some(format!(
            "but clients send it in small letters and without a path; write {}",
            normal.escape_debug()
        ));
    }
    if header.is_some_and(|header| may_never_be_sent(header, text)) {
        return Some(
            "which clients hardly send as a whole; write it with `*` at both ends, and look at what yours send"
                .to_owned(),
        );
    }
    if text.starts_with('!') {
        return Some("which is compared with its `!`; write a value to exclude under `not`".to_owned());
    }
    let is_list = header.is_some_and(is_list_header);
    if has_alternatives(name, text) || !is_list && is_comma_list(text) {
        return Some(
            "which may be several values in one text and is compared as it is; write a list of them if they are"
                .to_owned(),
        );
    }
    (header == Some("user-agent") && is_bare_word(text))
        .then(|| "which is compared as a whole, and clients send more; write it with `*`, such as \"*bot*\"".to_owned())
}

/// A media type without parameters, and not a pattern.
fn is_bare_media_type(text: &str) -> bool {
    text.contains('/') && !text.contains(['*', ';', ',', ' '])
}

/// One word without a version: no client calls itself `curl`.
fn is_bare_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(['*', '/', ' '])
}

/// The form in which clients send an origin with a scheme, if `text` has another.
fn normal_origin(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let host = rest.split('/').next().unwrap_or_default();
    let is_one = !rest.contains([',', '|']);
    Some(format!("{scheme}://{host}").to_ascii_lowercase()).filter(|normal| is_one && normal != text)
}

/// Whether a header begins or ends otherwise: an origin and a referrer with a scheme, a referrer with a path, cookies
/// with any of them, and credentials, a media type and lists of accepted values with more than one word.
fn may_never_be_sent(header: &str, text: &str) -> bool {
    let (is_open, is_literal) = (text.starts_with('*'), !text.contains('*'));
    let is_url = is_open || text.contains("://");
    match header {
        "origin" => text != "null" && !is_url,
        "referer" => !is_url || is_literal && text.matches('/').count() < 3,
        "cookie" => !is_open,
        "authorization" => !text.contains(['*', ' ']),
        "content-type" => !is_open && !text.contains('/'),
        "accept-encoding" | "accept-language" => is_literal && !text.contains([',', ';']),
        "accept" => text == "text/html",
        _ => false,
    }
}

/// Whether values of an attribute may be paths, which begin and end with `/`.
fn may_be_path(name: &str) -> bool {
    ["key", "path", "uri", "url", "route", "file", "dir", "folder"].iter().any(|word| name.contains(word))
}

/// The same as [`is_anchored`] for attributes that are no headers: a name may end with `$`.
fn is_anchored_text(name: &str, text: &str) -> bool {
    let may_be_name = ["user", "account", "host", "key"].iter().any(|word| name.contains(word));
    match text.strip_suffix('$') {
        Some(name) if may_be_name => is_anchored(name),
        _ => is_anchored(text),
    }
}

/// The same as [`has_regex_syntax`] for attributes that are no headers: `DOMAIN\dave` has a backslash.
fn has_regex_syntax_in_text(text: &str) -> bool {
    has_regex_syntax(&text.replace('\\', "")) || has_repeated_class(text)
}

/// `\d+`, `\w*` and `\d{2}`.
fn has_repeated_class(text: &str) -> bool {
    text.as_bytes().windows(3).any(|three| matches!(three, [b'\\', b'd' | b'w' | b's', b'+' | b'*' | b'?' | b'{']))
}

/// `^curl`, `curl$`, `.*bot` and the `~*bot` of nginx.
fn is_anchored(text: &str) -> bool {
    let ends = text.len() > 1 && text.ends_with('$');
    ends || text.starts_with('^') || text.starts_with(".*") || is_nginx_regex(text)
}

/// `~ bot`, `~*bot`, `~^curl`. A plain `~1.2` is a range of versions.
fn is_nginx_regex(text: &str) -> bool {
    let rest = text.strip_prefix('~');
    rest.is_some_and(|rest| rest.starts_with(['*', '^', ' ', '(', '.']))
}

/// `(?i)bot`, `[Bb]ot`, `[a-z]`, `\d+`, `.+`, `(curl|wget)`, `(curl)`.
fn has_regex_syntax(text: &str) -> bool {
    let signs = ["(?", "[^", "[0-9", "[a-z", "[A-Z", ".+", ")+", ")*", ")?", r"\d", r"\w", r"\s", r"\b", r"\.", r"\/"];
    let is_group = text.len() > 2 && text.starts_with('(') && text.ends_with(')') && !text.contains([' ', ';']);
    is_group || has_group(text) || has_case_class(text) || signs.iter().any(|sign| text.contains(sign))
}

/// Alternatives in parentheses. The comment of a user agent has blanks: `(Linux; U|X)`.
fn has_group(text: &str) -> bool {
    text.split('(').skip(1).any(|rest| {
        let inner = rest.split_once(')').map_or("", |(inner, _)| inner);
        inner.contains('|') && !inner.contains([' ', ';'])
    })
}

/// A letter in both cases in brackets: `[Bb]`.
fn has_case_class(text: &str) -> bool {
    text.as_bytes().windows(4).any(|four| match four {
        [b'[', a, b, b']'] => a != b && a.is_ascii_alphabetic() && a.eq_ignore_ascii_case(b),
        _ => false,
    })
}

/// `/bot/` and `/bot/i`.
fn is_delimited(text: &str) -> bool {
    let Some((inner, flags)) = text.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')) else {
        return false;
    };
    !inner.is_empty() && flags.len() <= 4 && flags.chars().all(|flag| "gimsuxy".contains(flag))
}

/// `.*` behind a letter or a bracket. Behind a digit it is part of a version: `MyApp/3.*`. `.**` is a dot and any text.
fn has_dot_star(text: &str) -> bool {
    let mut places = text.match_indices(".*");
    places.any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_digit()) && !text[at..].starts_with(".**"))
}

/// Whether `|` separates values, as in `curl|wget` and `free | pro`. Ids of users such as `auth0|5f7c8` are one
/// value; plain words such as `admin|root` are several.
fn has_alternatives(name: &str, text: &str) -> bool {
    let may_be_id = name == "user" || name.contains("user") && !name.contains("agent");
    let is_value = |part: &str| !part.contains(|c: char| c.is_whitespace() || matches!(c, '(' | ';' | '?'));
    let is_word = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphabetic());
    let parts = text.split('|').map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let is_meant = !may_be_id || text.contains(" | ") || parts.iter().all(|part| is_word(part));
    is_meant && parts.len() > 1 && parts.iter().all(|part| is_value(part))
}

/// Whether commas separate values, as in `free, pro`, `curl/*, wget/*` and `Basic *, Bearer *`. `Acme, Inc.`,
/// `1,000`, dates and user agents such as `(KHTML, like Gecko)` are one value.
fn is_comma_list(text: &str) -> bool {
    let is_value = |part: &str| {
        let scheme = part.strip_suffix(" *").unwrap_or(part);
        let is_one = !scheme.contains(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ';'));
        !part.is_empty() && is_one && !part.ends_with('.')
    };
    let is_thousands = |part: &str| part.len() == 3 && part.bytes().all(|b| b.is_ascii_digit());
    let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && text.split(',').skip(1).all(is_thousands);
    text.contains(',') && !is_number && text.split(',').map(str::trim).all(is_value)
}

/// Headers whose values are lists with commas.
fn is_list_header(header: &str) -> bool {
    header.starts_with("accept")
        || matches!(
            header,
            "cache-control" | "pragma" | "via" | "vary" | "allow" | "connection" | "te" | "expect" | "priority"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug)]
    enum ValueVerdict {
        Invalid,
        Suspicious,
        Valid,
    }
    use ValueVerdict::{Invalid, Suspicious, Valid};

    fn verdict(name: &str, text: &str) -> ValueVerdict {
        match (check(name, text), warning(name, text)) {
            (Err(_), _) => Invalid,
            (Ok(()), Some(_)) => Suspicious,
            (Ok(()), None) => Valid,
        }
    }

    #[test]
    fn regular_expressions_are_errors_in_structured_headers_and_warnings_elsewhere() {
        for text in [".*[Bb]ot.*", "(?i).*bot.*", "~*bot", "^curl", "curl$", "(curl|wget)", r"curl/\d+", "[Bb]ot"] {
            assert_eq!(verdict("header.user-agent", text), Invalid, "{text}");
            assert_eq!(verdict("header.x-agent", text), Suspicious, "{text}");
        }
        assert_eq!(verdict("header.user-agent", "/bot/i"), Invalid);
        assert_eq!(verdict("header.x-uri", "/a/i"), Valid);
        for text in
            [".*bot", "^ada", "~*ada", "adm.*", "/^adm/i", r"adm\d+", "[Aa]dm", "adm.+", "/adm/", "(adm)", "^adm$"]
        {
            assert_eq!(verdict("user", text), Suspicious, "{text}");
        }
        for text in ["pro$", "/pro/", "pro.*", "[a-z]*"] {
            assert_eq!(verdict("plan", text), Suspicious, "{text}");
            assert_eq!(verdict("header.x-plan", text), Suspicious, "{text}");
        }
        for text in ["curl.+", "(bot)", "(bot)+"] {
            assert_eq!(verdict("header.user-agent", text), Invalid, "{text}");
        }
        for text in ["bot+", "Bot.", "curl"] {
            assert_eq!(verdict("header.user-agent", text), Suspicious, "{text}");
        }
    }

    #[test]
    fn values_that_are_never_sent_as_a_whole_cause_a_warning() {
        for (name, text) in [
            ("header.origin", "a.example"),
            ("header.origin", "https://*.a.example/"),
            ("header.referer", "a.example"),
            ("header.cookie", "session=*"),
            ("header.authorization", "Bearer"),
            ("header.accept", "text/html"),
            ("header.cookie", "session"),
            ("header.cookie", "session*"),
            ("header.content-type", "json"),
            ("header.accept-encoding", "gzip"),
            ("header.accept-language", "en"),
            ("header.referer", "https://a.example"),
            ("header.origin", "https://A.example"),
            ("header.origin", "https://a.example/x"),
        ] {
            assert_eq!(verdict(name, text), Suspicious, "{name} {text}");
        }
    }

    #[test]
    fn several_values_in_one_text_cause_a_warning() {
        for (name, text) in [
            ("header.user-agent", "curl|wget"),
            ("header.user-agent", "curl, wget"),
            ("header.user-agent", "*curl*|*wget*"),
            ("header.user-agent", "curl.*"),
            ("header.x-plan", "free,pro"),
            ("user", "ada, bob"),
            ("user", "ada@x.example, bob@x.example"),
            ("header.user-agent", "curl/*, wget/*"),
            ("header.user-agent", "curl/*|wget/*"),
            ("header.content-type", "application/json, text/xml"),
            ("header.origin", "https://a.example,https://b.example"),
            ("header.referer", "https://a.example/*, https://b.example/*"),
            ("header.content-type", "multipart/form-data"),
            ("header.authorization", "Basic *, Bearer *"),
            ("header.x-version", "1.0, 2.0"),
            ("header.x-version", "v1|v2"),
            ("header.x-tenant", "10,20"),
            ("plan", "free|pro"),
            ("domain", "web|api"),
            ("user", "ada | bob"),
            ("user", "admin|root"),
            ("user", "admin||root"),
            ("user", "(admin|root)"),
            ("org", "(acme|beta)"),
            ("header.x-tenant", "a.example, b.example"),
        ] {
            assert_eq!(verdict(name, text), Suspicious, "{name} {text}");
        }
    }

    #[test]
    fn values_that_clients_send_are_neither() {
        for (name, text) in [
            ("header.user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
            ("header.user-agent", "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0"),
            ("header.user-agent", "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"),
            ("header.user-agent", "Dalvik/2.1.0 (Linux; U|X; Android 9)"),
            ("header.user-agent", "MyApp/3.*"),
            ("header.user-agent", "*[bot]*"),
            ("header.accept", "text/html, */*"),
            ("header.accept", "application/json"),
            ("header.origin", "null"),
            ("header.origin", "https://*.a.example"),
            ("header.origin", "*.a.example"),
            ("header.referer", "*a.example*"),
            ("header.accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"),
            ("header.accept-encoding", "gzip, deflate, br"),
            ("header.content-type", "application/vnd.api+json*"),
            ("header.content-type", "multipart/form-data; boundary=*"),
            ("header.referer", "https://a.example/*"),
            ("header.referer", "https://a.example/?q=a|b"),
            ("header.x-user", "auth0|5f7c8"),
            ("header.x-version", "~1.2"),
            ("header.x-price", "$"),
            ("header.x-date", "Wed, 21 Oct 2026 07:28:00 GMT"),
            ("header.authorization", "Bearer *"),
            ("header.cookie", "*a=b*"),
            ("header.cookie", "*session*"),
            ("header.cookie", "*"),
            ("header.content-type", "*json*"),
            ("header.accept-encoding", "*gzip*"),
            ("header.accept-language", "en*"),
            ("header.referer", "https://a.example/"),
            ("header.referer", "https://a.example*"),
            ("header.origin", "https://a.example:8443"),
            ("user", r"DOMAIN\dave"),
            ("user", "HOST01$"),
            ("user", "auth0|abc"),
            ("user", "google-oauth2|1077"),
            ("user", "team.**"),
            ("user", r"CORP\svc"),
            ("plan", "pro+"),
            ("user", "*@example.com"),
            ("org", "Acme, Inc."),
            ("header.x-size", "1,000"),
            ("header.x-name", "Jones, Ada Maria"),
            ("generic_key", "a/b"),
        ] {
            assert_eq!(verdict(name, text), Valid, "{name} {text}");
        }
    }
}
