//! Glob patterns: `/api/*/users/**`, `*.css`, `bot-*`.
//!
//! In a pattern of paths with a `/`, `*` stays within one segment, and a segment `**` matches any number of segments,
//! none included: `/a/**` also matches `/a`. In every other pattern `*` and `**` match any text: a user agent has
//! slashes and no segments. Matching allocates nothing. It backtracks only to the last wildcard, so that its time is
//! bounded by the length of the pattern times the length of the text.

/// A pattern with at least one `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Glob {
    pattern: Box<str>,
    has_segments: bool,
}

impl Glob {
    /// A pattern of values of the attribute `name`.
    pub(crate) fn new(name: &str, pattern: &str) -> Self {
        Glob { pattern: pattern.into(), has_segments: Self::is_path_attribute(name) && pattern.contains('/') }
    }

    /// Whether the values of the attribute `name` are paths.
    pub(crate) fn is_path_attribute(name: &str) -> bool {
        matches!(name, "path" | "raw_path")
    }

    pub(crate) fn is_glob(text: &str) -> bool {
        text.contains('*')
    }

    /// Whether `**` is next to other text in its segment, which would read as if it crossed segments.
    pub(crate) fn is_ambiguous(text: &str) -> bool {
        text.split('/').any(|segment| segment != "**" && segment.contains("**"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether matching is by segments.
    pub(crate) fn has_segments(&self) -> bool {
        self.has_segments
    }

    /// Whether it matches every text.
    pub(crate) fn matches_everything(&self) -> bool {
        if self.has_segments {
            matches!(&*self.pattern, "/**" | "**/**")
        } else {
            self.pattern.bytes().all(|byte| byte == b'*')
        }
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        if self.has_segments { segments_match(&self.pattern, text) } else { segment_matches(&self.pattern, text) }
    }
}

fn segments_match(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (Some(pattern), Some(text));
    // The pattern after the last `**`, and the text that this `**` has not consumed yet.
    let mut backtrack: Option<(&str, Option<&str>)> = None;
    loop {
        match (pattern.map(split_first_segment), text.map(split_first_segment)) {
            (None, None) => return true,
            (Some(("**", rest)), _) => {
                let Some(rest) = rest else { return true };
                backtrack = Some((rest, text));
                pattern = Some(rest);
                continue;
            }
            (Some((expected, rest)), Some((found, left))) if segment_matches(expected, found) => {
                (pattern, text) = (rest, left);
                continue;
            }
            _ => {}
        }
        let Some((rest, Some(unswallowed))) = backtrack else { return false };
        let left = split_first_segment(unswallowed).1;
        backtrack = Some((rest, left));
        (pattern, text) = (Some(rest), left);
    }
}

/// The first segment and what follows it.
pub(crate) fn split_first_segment(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    }
}

/// Matches one segment against a pattern in which `*` is any run of bytes.
pub(crate) fn segment_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut backtrack: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                backtrack = Some((p, t));
            }
            Some(expected) if *expected == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, swallowed)) = backtrack else { return false };
                backtrack = Some((after, swallowed + 1));
                (p, t) = (after, swallowed + 1);
            }
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        check_for("path", pattern, matching, others);
    }

    #[track_caller]
    fn check_for(name: &str, pattern: &str, matching: &[&str], others: &[&str]) {
        let glob = Glob::new(name, pattern);
        for text in matching {
            assert!(glob.matches(text), "{pattern} should match {text}");
        }
        for text in others {
            assert!(!glob.matches(text), "{pattern} should not match {text}");
        }
    }

    #[test]
    fn a_star_stays_within_its_segment() {
        check("/users/*/posts", &["/users/7/posts", "/users//posts"], &["/users/posts", "/users/7/8/posts"]);
        check("/v*/x", &["/v1/x", "/v/x"], &["/w1/x", "/v1/2/x"]);
        check("/a*b*c", &["/abc", "/axbxbxc"], &["/ab", "/abcd", "/ab/c"]);
    }

    #[test]
    fn two_stars_stand_for_any_number_of_segments() {
        check("/a/**", &["/a", "/a/", "/a/b", "/a/b/c"], &["/ab", "/", "/b/a"]);
        check("/a/**/z", &["/a/z", "/a/b/z", "/a/z/z"], &["/a", "/a/z/b", "/a/bz"]);
        check("/**/x/**/y", &["/x/y", "/a/x/b/y", "/x/x/y/y"], &["/y/x", "/x/a"]);
        check("/**", &["/", "/a/b"], &[]);
    }

    #[test]
    fn without_a_slash_a_star_is_any_text() {
        check("*bot*", &["Mozilla/5.0 (bot/1.0)", "bot"], &["Mozilla/5.0"]);
        check("*.css", &["/static/site.css"], &["/static/site.css.map"]);
        check("**", &["", "a/b"], &[]);
    }

    /// `Mozilla/5.0*` matched no user agent that names a second product, and every user agent does.
    #[test]
    fn a_star_crosses_slashes_where_values_are_no_paths() {
        let agent = "Mozilla/5.0 (X11; Linux) AppleWebKit/537.36 Chrome/126";
        for pattern in ["Mozilla/5.0*", "Mozilla/*Chrome/**", "*/537.36 *", "**/126"] {
            check_for("header.user-agent", pattern, &[agent], &["curl/8.0"]);
        }
        check_for("user", "a/*", &["a/b", "a/b/c", "a/"], &["a", "b/a/"]);
        check_for("raw_path", "/a/*", &["/a/b"], &["/a/b/c"]);
        assert!(Glob::new("user", "***").matches_everything() && !Glob::new("user", "/**").matches_everything());
    }

    #[test]
    fn a_hostile_pattern_does_not_take_forever() {
        let text = format!("/{}", "a".repeat(5_000));
        check(&format!("/{}b", "*a".repeat(200)), &[], &[&text]);
        let text = "/a".repeat(2_000);
        check(&format!("{}/b", "/**/a".repeat(100)), &[], &[&text]);
    }
}
