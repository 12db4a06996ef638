//! Paths in rules: finds what other programs write for several paths, for any segment, or for a path and a method.

use super::methods;

/// What a text has if it is not a path or pattern, and what that means and what to write instead.
type Sign = (fn(&str) -> bool, &'static str);

/// Spellings of other programs that no path has. The first that applies is reported.
const SIGNS: [Sign; 10] = [
    (
        |text| text.split('/').any(is_optional),
        "in which a segment is optional; write a list without it and with `*` for it: [/files, /files/*]",
    ),
    (|text| text.contains(['?', '#']), "but a path has no query; write what stands before `?` or `#`"),
    (is_path_list, SEVERAL_PATHS),
    (
        |text| text.contains('|'),
        "which is several paths in one text; write a list: [/login, /signup], or %7C for a `|` in a path",
    ),
    (
        |text| text.split('/').any(is_catch_all),
        "in which a segment has a name and stands for several; write `**` for it: /files/**",
    ),
    (has_path_parameter, "in which a segment has a name; write `*` for it"),
    (
        |text| text.contains("(/") || text.contains("(."),
        "in which a part in parentheses is not optional; write a list: [/users, /users/new], or %28 and %29 for \
         parentheses in a path",
    ),
    (
        |text| text.contains(['[', ']']),
        "in which brackets are no choice of letters; write `*` or a list: [/v1/users, /v2/users], or %5B and %5D for \
         brackets in a path",
    ),
    (
        has_bad_escape,
        "in which a `%` has no two hexadecimal digits behind it; write `*` for a part that varies, or %25 for the sign",
    ),
    (
        |text| text.contains('\\'),
        r"in which `\` is a `/`, as in requests; leave it out, because no sign needs it, or write `/`",
    ),
];

/// Spellings that a path may have and probably does not.
const DOUBTFUL_SIGNS: [Sign; 3] = [
    (|text| text.contains(",*."), "which may be several patterns in one text; write a list if it is"),
    (has_named_wildcard, "in which the last segment is any text with that end; write /** for all below"),
    (has_blank, "which has a blank inside; write %20 if requests have it there, or a list if these are several paths"),
];

/// Spellings that a raw path may have and probably does not.
const DOUBTFUL_RAW_SIGNS: [Sign; 4] = [
    (is_path_list, "which may be several paths in one text; write a list if it is"),
    (
        |text| is_regular_expression(text) || text.contains(['|', '[', ']', '\\']),
        "which may be a regular expression and is compared as it is; write `*` within a segment and /** for all below",
    ),
    (
        |text| text.contains('/') && has_path_parameter(text),
        "in which a segment may be a name and is compared as it is; write `*` for any",
    ),
    (has_blank, "which has a blank inside, as no request line has; write %20"),
];

const SEVERAL_PATHS: &str = "which is several paths in one text; write a list: [/login, /signup]";

/// The meaning of the first sign that `text` has.
fn find_sign(signs: &[Sign], text: &str) -> Option<&'static str> {
    signs.iter().find(|(has, _)| has(text)).map(|(_, meaning)| *meaning)
}

/// What is wrong with a path that a rule names, and what to write.
pub(super) fn check(text: &str) -> Result<(), String> {
    if let Some(meant) = nginx_location(text) {
        return Err(format!("which is a location of nginx; write {}", meant.escape_debug()));
    }
    if is_regular_expression(text) {
        return Err(
            "which is a regular expression; write `*` within a segment, /** for all below, and %2E* for a dot \
                    and any text"
                .to_owned(),
        );
    }
    check_method("path", text)?;
    if let Some((host, path)) = split_origin(text) {
        return Err(format!(
            "but a path has no origin; write `path: {}` and `host: {}`",
            path.escape_debug(),
            host.escape_debug()
        ));
    }
    check_leading_slash(text)?;
    if let Some(meaning) = find_sign(&SIGNS, text) {
        return Err(meaning.to_owned());
    }
    match text.chars().find(|c| "<>{}\"`^".contains(*c)) {
        None => Ok(()),
        Some(sign) => Err(format!(
            "but no path has {sign:?}; write `*` for a part that varies, or %{:02X} for the sign",
            u32::from(sign)
        )),
    }
}

/// Rejects a path and a method in one text.
fn check_method(attribute: &str, text: &str) -> Result<(), String> {
    match split_method(text) {
        None => Ok(()),
        Some((path, method)) => Err(format!(
            "which is a path and a method; write `{attribute}: {}` and `method: {method}`",
            path.escape_debug()
        )),
    }
}

/// The pattern for a location of nginx: `= /login`, `^~ /api/`, `~ ^/api` or `~ /admin`. All but the first match
/// everything below, too. `None` if the path has signs of a regular expression, which would end up in the advice.
fn nginx_location(text: &str) -> Option<String> {
    let (modifier, path) = text.split_once(char::is_whitespace)?;
    let path = path.trim_start();
    let (path, is_anchored) = match path.strip_prefix('^') {
        Some(path) => (path, true),
        None => (path, false),
    };
    let prefix = path.strip_prefix('/')?.trim_end_matches('/');
    let is_plain = |c: char| c.is_alphanumeric() || "/-_~".contains(c);
    if prefix.is_empty() || !prefix.chars().all(is_plain) {
        return None;
    }
    match modifier {
        "=" => Some(path.to_owned()),
        "^~" => Some(format!("/{prefix}/**")),
        "~" | "~*" if is_anchored => Some(format!("/{prefix}/**")),
        "~" | "~*" => Some(format!("**/{prefix}/**")),
        _ => None,
    }
}

/// The host and the path of `http://example.com/login`, also after a slash.
fn split_origin(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.strip_prefix('/').unwrap_or(text).split_once("://")?;
    if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric()) {
        return None;
    }
    let (host, _) = rest.split_once('/').unwrap_or((rest, ""));
    let path = rest.get(host.len()..).unwrap_or_default();
    Some((host, if path.is_empty() { "/" } else { path }))
}

fn check_leading_slash(text: &str) -> Result<(), String> {
    if let Some(path) = text.strip_prefix('!') {
        let path = path.trim_start().escape_debug();
        return Err(format!("but every path begins with `/`; write `not: {{ path: {path} }}`"));
    }
    if let Some((host, rest)) = text.split_once('/')
        && (host.contains(['.', ':']) || host.starts_with('$'))
        && !host.contains('*')
    {
        let (host, rest) = (host.escape_debug(), rest.escape_debug());
        return Err(format!(
            "but every path begins with `/`; write /{rest}, with `host: {host}` beside it if that is a host, or \
             /{host}/{rest} if it is not"
        ));
    }
    if !text.starts_with(['/', '*']) {
        return Err(format!("but every path begins with `/`; write /{}", text.escape_debug()));
    }
    if text.contains('/') && text.starts_with('*') && !text.starts_with("**/") {
        let below = text.strip_prefix("*/").unwrap_or(text);
        return Err(format!(
            "but every path begins with `/`, which `*` does not match; write /**/{}",
            below.escape_debug()
        ));
    }
    Ok(())
}

/// What is wrong with a raw path that a rule names, and what to write. A raw path may have a query, may be a whole
/// URL, and may have any text. Only blanks and anchors are certain to be a mistake, because no request line has them.
pub(super) fn check_raw(text: &str) -> Result<(), String> {
    if text.starts_with('^') || text.ends_with('$') || text.starts_with(".*") {
        return Err("which is a regular expression; write `*` within a segment and /** for all below".to_owned());
    }
    check_method("raw_path", text)?;
    if is_path_list(text) && has_blank(text) {
        return Err(SEVERAL_PATHS.to_owned());
    }
    if text.contains("://") {
        return Ok(());
    }
    check_leading_slash(text)
}

/// The warning about a raw path that may be correct and probably is not.
pub(super) fn raw_warning(text: &str) -> Option<String> {
    find_sign(&DOUBTFUL_RAW_SIGNS, text).map(str::to_owned).or_else(|| odd_character(text))
}

/// The warning about a path that may be correct and probably is not: blanks are rare in paths and common between
/// them.
pub(super) fn warning(text: &str) -> Option<String> {
    find_sign(&DOUBTFUL_SIGNS, text).map(str::to_owned).or_else(|| odd_character(text))
}

/// The warning about a character that may only look like the one that is meant, or that nobody sees. Requests have it as
/// `%XX`, which looks like nothing else.
fn odd_character(text: &str) -> Option<String> {
    let odd = text.chars().find(|c| !c.is_ascii() || c.is_ascii_control())?;
    let why = if odd.is_ascii() { "cannot be seen" } else { "is not ASCII" };
    let encoded: String = odd.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
    Some(format!("with U+{:04X}, which {why}; correct it, or write {encoded} if requests have it", u32::from(odd)))
}

fn has_blank(text: &str) -> bool {
    text.contains(char::is_whitespace)
}

/// Whether a text is a regular expression, by signs that paths do not have. Parentheses and `$` alone are in paths of
/// OData: `/orders(7)`, `/$batch`.
fn is_regular_expression(text: &str) -> bool {
    let signs = [".*", ".+", "(?", "[^", "[0-9", "[a-z", "[A-Z", r"\d", r"\w"];
    let has_alternatives = text.contains('(') && text.contains('|');
    let is_anchored = text.starts_with('^') || text.ends_with('$');
    is_anchored || has_alternatives || signs.iter().any(|sign| text.contains(sign))
}

/// The path and the method of `/login POST` and `POST /login`. Only capitals are a method: `/my report` is a path.
fn split_method(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split_whitespace();
    match (words.next()?, words.next()?) {
        (method, path) if methods::is_known(method) && path.starts_with('/') => Some((path, method)),
        (path, method) if methods::is_known(method) && path.starts_with('/') => Some((path, method)),
        _ => None,
    }
}

/// Whether a separator of values precedes a slash.
fn is_path_list(text: &str) -> bool {
    let separates = |c: char| matches!(c, ',' | '|' | ';') || c.is_whitespace();
    let mut parts = text.split(separates).skip(1);
    parts.any(|part| part.starts_with('/'))
}

/// Whether a segment is a variable of a framework: `{id}`, `<id>`, `[id]`, `(id)`, `:id`.
pub(super) fn has_path_parameter(text: &str) -> bool {
    text.split('/').any(is_path_parameter)
}

fn is_path_parameter(segment: &str) -> bool {
    let enclosed = |open, close| segment.starts_with(open) && segment.ends_with(close);
    let pairs = [('{', '}'), ('<', '>'), ('[', ']'), ('(', ')')];
    segment.starts_with(':') || pairs.iter().any(|(open, close)| enclosed(*open, *close))
}

/// `:id?` and `{id?}`.
fn is_optional(segment: &str) -> bool {
    let name = segment.trim_end_matches(['}', '>', ']', ')']);
    is_path_parameter(segment.trim_end_matches('?')) && (name.ends_with('?') || segment.ends_with('?'))
}

fn has_bad_escape(text: &str) -> bool {
    let mut escapes = text.split('%').skip(1);
    escapes.any(|rest| {
        let digits = rest.bytes().take(2).filter(u8::is_ascii_hexdigit);
        digits.count() < 2
    })
}

/// Whether a segment stands for all that follows: `{*path}`, `{proxy+}`, `{+path}`, `<path..>`, `{path:path}`,
/// `<path:sub>`, `{rest...}`, `[...slug]`, `:rest*`.
fn is_catch_all(segment: &str) -> bool {
    let name = segment.trim_end_matches(['}', '>', ']', ')']);
    let marks = ["*", "..", ":path", "<path:", "{+"];
    is_path_parameter(segment) && (name.ends_with('+') || marks.iter().any(|mark| segment.contains(mark)))
}

/// `/files/*path`, as Rails, Gin and Express write it for all below.
fn has_named_wildcard(text: &str) -> bool {
    const NAMES: [&str; 12] =
        ["all", "any", "args", "catchall", "file", "filepath", "path", "proxy", "rest", "slug", "splat", "wildcard"];
    let name = text.rsplit_once('/').map_or("", |(_, last)| last).strip_prefix('*').unwrap_or_default();
    NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_only_look_like_a_regular_expression_are_paths() {
        for path in [
            "/$batch",
            "/orders(7)/items",
            "/%2E*",
            "/a+b",
            "/v1/things:run",
            "/~ada",
            "/a;v=1/b",
            "/a,b",
            "/docs%20/x",
        ] {
            assert_eq!((check(path), warning(path)), (Ok(()), None), "{path}");
        }
        for path in ["^/api", "/api$", "/(a|b)", "/x/.*", "/x/.+", "/[0-9]*", r"/\d"] {
            assert!(is_regular_expression(path), "{path}");
        }
    }

    /// The text before the first `/` of a path is empty, so that no path matched such a pattern.
    #[test]
    fn a_pattern_with_segments_begins_with_a_slash_or_two_stars() {
        for (text, cure) in [
            ("*api/**", "/**/*api/**"),
            ("*.php/x", "/**/*.php/x"),
            ("*/admin/**", "/**/admin/**"),
            ("**x/y", "/**/**x/y"),
            ("login*", "/login*"),
        ] {
            let wrong = check(text).unwrap_err();
            assert!(wrong.ends_with(&format!("write {cure}")), "{wrong}");
            assert!(wrong.starts_with("but every path begins with `/`"), "{wrong}");
        }
        for path in ["*", "**", "*.css", "*bot*", "**/admin/**", "/*/admin", "/robots%2E*"] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn a_path_as_it_is_sent_is_wrong_where_no_request_line_has_it() {
        for (text, cure) in [
            ("login", "write /login"),
            ("^/a.*$", "write `*` within a segment"),
            ("/a$", "write `*` within a segment"),
            ("/a, /b", "write a list"),
            ("/a POST", "write `raw_path: /a` and `method: POST`"),
            ("*/admin/**", "write /**/admin/**"),
        ] {
            let wrong = check_raw(text).unwrap_err();
            assert!(wrong.contains(cure), "{wrong}");
        }
        for text in ["/a,/b", "/x/.+", "/v1/:id", "/v1/{id}", "/my report", "/(a|b)"] {
            assert_eq!(check_raw(text), Ok(()), "{text}");
            assert!(raw_warning(text).is_some(), "{text}");
        }
        for text in [
            "/a?x=1",
            "/a?to=/b",
            "//login",
            "/%6cogin",
            "/a;v=1",
            "/a/*",
            "**/admin/**",
            "*",
            "http://a.example/x",
            "/$batch?$top=1",
        ] {
            assert_eq!((check_raw(text), raw_warning(text)), (Ok(()), None), "{text}");
        }
    }

    /// Each was accepted, and matched nothing beside other paths of the same rule.
    #[test]
    fn signs_of_other_languages_are_wrong_and_the_advice_is_a_path_that_requests_have() {
        for (text, cure) in [
            ("/login|signup", "write a list"),
            ("/api/v1|v2/x", "write a list"),
            ("*.php|*.asp", "write a list"),
            ("/api/v[12]/users", "write `*` or a list"),
            ("*.[pP]hp", "write `*` or a list"),
            (r"/wp-login\.php", "leave it out"),
            ("http://example.com/login", "write `path: /login` and `host: example.com`"),
            ("/https://api.example.com:8443/a/**", "write `path: /a/**` and `host: api.example.com:8443`"),
            ("http://example.com", "write `path: /`"),
            ("example.com/login", "write /login, with `host: example.com`"),
            ("localhost:8080/login", "write /login, with `host: localhost:8080`"),
            ("$host/login", "write /login, with"),
            ("!/login", "write `not: { path: /login }`"),
            ("= /login", "write /login"),
            ("^~ /api/", "write /api/**"),
            ("~ ^/users", "write /users/**"),
            ("~* /admin/", "write **/admin/**"),
            ("~ ^/api$", "which is a regular expression"),
            ("^~ /", "/** for all below"),
            ("/files/<path..>", "write `**` for it"),
            ("/files/{+path}", "write `**` for it"),
            ("/files/:id?", "write a list"),
            ("/files/{id?}", "write a list"),
            ("/users/<id>.json", "write `*` for a part that varies"),
            ("/v{version}/x", "or %7B for the sign"),
            ("/u/%s", "or %25 for the sign"),
            ("/api/{*path}", "write `**` for it"),
            ("/{proxy+}", "write `**` for it"),
            ("/files/{path:path}", "write `**` for it"),
            ("/files/<path:sub>", "write `**` for it"),
            ("/files/{rest...}", "write `**` for it"),
            ("/files/:rest*", "write `**` for it"),
            ("/files/:rest+", "write `**` for it"),
            ("/files/[...slug]", "write `**` for it"),
            ("/files/[[...slug]]", "write `**` for it"),
            ("/users/(id)", "write `*` for it"),
            ("/login(.:format)", "write a list"),
            ("/users(/new)", "write a list"),
        ] {
            let wrong = check(text).unwrap_err();
            assert!(wrong.contains(cure), "{text} {wrong}");
        }
        for right in ["/a%7Cb", "/v%5B1%5D", "/proxy/http:/x", "/a,b"] {
            assert_eq!((check(right), warning(right)), (Ok(()), None), "{right}");
        }
        for suspicious in ["*.php,*.asp", "/files/*path", "/*splat"] {
            assert!(warning(suspicious).is_some(), "{suspicious}");
        }
        assert_eq!(warning("/api/*login"), None);
        for raw in ["/login|signup", "/v[12]", r"/wp-login\.php"] {
            assert!(raw_warning(raw).is_some(), "{raw}");
        }
    }

    /// A zero-width space and a Cyrillic letter look like the path that was meant, and match no request for it.
    #[test]
    fn characters_that_are_not_ascii_or_cannot_be_seen_cause_a_warning() {
        for (text, found) in [
            ("/log\u{200b}in", "U+200B, which is not ASCII; correct it, or write %E2%80%8B"),
            ("/l\u{43e}gin/**", "U+043E, which is not ASCII; correct it, or write %D0%BE"),
            ("/caf\u{e9}", "U+00E9, which is not ASCII; correct it, or write %C3%A9"),
            ("/a\u{7f}", "U+007F, which cannot be seen; correct it, or write %7F"),
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
            for warning in [warning(text), raw_warning(text)] {
                assert!(warning.as_deref().is_some_and(|warning| warning.contains(found)), "{text} {warning:?}");
            }
        }
        assert_eq!(warning("/caf%C3%A9/%D0%BE"), None);
    }

    #[test]
    fn several_paths_in_one_text_are_wrong() {
        for several in ["/a,/b", "/a|/b", "/a, /b", "/a /b", "/a;/b", "/a; /b", "/a\n/b", "/a\t/b", "/a | /b"] {
            let wrong = check(several);
            assert!(wrong.is_err_and(|wrong| wrong.contains("write a list")));
        }
    }

    #[test]
    fn a_method_beside_a_path_is_an_error_and_another_blank_a_warning() {
        for text in ["/login POST", "POST /login", "/login  POST"] {
            let cure = "write `path: /login` and `method: POST`";
            assert!(check(text).is_err_and(|wrong| wrong.ends_with(cure)), "{text}");
        }
        for text in ["/my report", "/a b"] {
            assert_eq!(check(text), Ok(()), "{text}");
            assert!(warning(text).is_some(), "{text}");
        }
    }
}
