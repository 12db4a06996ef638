//! The code of a Rust file, for tests that read sources.

/// The code alone. Line breaks stay, so that lines keep their numbers.
#[must_use]
pub fn without_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => line_end(&chars, at),
            ('/', Some('*')) => block_comment_end(&chars, at),
            ('"', _) => string_end(&chars, at),
            ('r', Some('"' | '#')) if begins_raw(&code) => raw_string_end(&chars, at),
            ('\'', _) => char_end(&chars, at),
            _ => at,
        };
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().filter(|c| **c == '\n'));
            code.push(' ');
            at = end;
        }
    }
    code
}

fn line_end(chars: &[char], from: usize) -> usize {
    let rest = chars[from..].iter().position(|c| *c == '\n');
    rest.map_or(chars.len(), |length| from + length)
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0_usize);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Whether an `r` after this code begins a raw string, if quotes follow: it is no end of a word but of `br` or `cr`.
fn begins_raw(code: &str) -> bool {
    !code.strip_suffix(['b', 'c']).unwrap_or(code).ends_with(is_word)
}

/// The end of `r"..."` or `r#"..."#`; `from` where it is a raw identifier.
fn raw_string_end(chars: &[char], from: usize) -> usize {
    let hashes = chars[from + 1..].iter().take_while(|c| **c == '#').count();
    let open = from + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return from;
    }
    let is_end =
        |at: usize| chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    let end = (open + 1..chars.len()).find(|at| is_end(*at));
    end.map_or(chars.len(), |at| at + 1 + hashes)
}

/// The end of a character; `from` where it is a lifetime.
fn char_end(chars: &[char], from: usize) -> usize {
    match (chars.get(from + 1), chars.get(from + 2)) {
        (Some('\\'), _) => {
            let rest = chars[from + 3..].iter().position(|c| *c == '\'');
            rest.map_or(chars.len(), |length| from + 4 + length)
        }
        (Some(_), Some('\'')) => from + 3,
        _ => from,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
