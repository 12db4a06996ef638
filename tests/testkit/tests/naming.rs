//! Names of the workspace: a type name exists once, refused words do not come back, and `if` decides on booleans.
//!
//! Each refused word was once used here in place of a word that the field already has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Whole segments of identifiers: `told` is refused, `stolen_total` is not.
const REFUSED_SEGMENTS: [&str; 8] = ["told", "untold", "asked", "tended", "owed", "reign", "vitals", "annex"];

const REFUSED_TYPES: [&str; 5] = ["Refusal", "Misfit", "Nonsense", "Garbled", "Unfit"];

/// Constants that bound something are called `MAX_`.
const REFUSED_PREFIXES: [&str; 3] = ["MOST_", "LONGEST_", "LARGEST_"];

/// A file: where it is, and its text.
type SourceText = (String, String);

#[test]
fn the_workspace_keeps_to_its_vocabulary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["crates", "tests"] {
        collect_rust_files(&root.join(folder), &mut files);
    }
    assert!(files.len() > 500, "only {} files found", files.len());
    let texts: Vec<SourceText> = files
        .iter()
        .map(|path| {
            let name = path.strip_prefix(&root).expect("a file below the root");
            let text = fs::read_to_string(path).expect("a source file");
            (name.display().to_string(), text)
        })
        .collect();
    let violations = violations(&texts);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn each_planted_violation_is_found() {
    check_found(&["struct Twice;", "pub enum Twice { A }"], "type `Twice` is defined 2 times");
    check_found(&["type Twice = u8;", "trait Twice {}"], "type `Twice` is defined 2 times");
    check_found(&["let was_told = 1;"], "`was_told` has the refused word `told`");
    check_found(&["struct OwedUnits;"], "`OwedUnits` has the refused word `owed`");
    check_found(&["struct Misfit;"], "`Misfit` is a refused type name");
    check_found(&["const MOST_KEYS: u8 = 1;"], "`MOST_KEYS` has a refused prefix");
    check_found(&["match a { true => 1, false => 2 }"], "match on a bool");
}

#[test]
fn what_only_looks_like_a_violation_is_not_found() {
    for text in [
        "// told, Misfit\nlet text = \"told\";",
        "let raw = r#\"told \"asked\" \"#; let c = '\"'; let d: &'static str = r\"told\";",
        "/* told /* asked */ owed */ let borrowed = foreign;",
        "match (a, b) { (true, _) => 1, _ => 2 }",
        "impl A for B { \n    type Output = u8;\n} impl A for C {\n    type Output = u8;\n}",
    ] {
        let found = violations(&[("a.rs".to_owned(), text.to_owned())]);
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[track_caller]
fn check_found(texts: &[&str], want: &str) {
    let files: Vec<SourceText> =
        texts.iter().enumerate().map(|(i, text)| (format!("{i}.rs"), (*text).to_owned())).collect();
    let found = violations(&files);
    assert!(found.len() == 1 && found[0].contains(want), "{found:?}");
}

fn collect_rust_files(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder");
        for entry in entries {
            collect_rust_files(&entry.expect("an entry").path(), files);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

/// All violations, each with its place.
fn violations(files: &[SourceText]) -> Vec<String> {
    let mut found = Vec::new();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in files {
        let code = without_comments_and_literals(text);
        for (i, line) in code.lines().enumerate() {
            let place = format!("{name}:{}", i + 1);
            if let Some(defined) = defined_type(line) {
                types.entry(defined.to_owned()).or_default().push(place.clone());
            }
            if is_bool_arm(line) {
                found.push(format!("{place}: match on a bool; write `if`"));
            }
            let reasons = identifiers(line).filter_map(refused);
            found.extend(reasons.map(|reason| format!("{place}: {reason}")));
        }
    }
    for (defined, places) in types.into_iter().filter(|(_, places)| places.len() > 1) {
        let (count, places) = (places.len(), places.join(", "));
        found.push(format!("type `{defined}` is defined {count} times: {places}"));
    }
    found
}

/// The type that a line defines. Associated types are not types of their own.
fn defined_type(line: &str) -> Option<&str> {
    let is_item = !line.starts_with(char::is_whitespace);
    let mut words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
    let keyword = words.next()?;
    let is_type = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => is_item,
        _ => false,
    };
    let rest = words.next().filter(|_| is_type)?;
    let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// Whether an arm of a `match` has nothing but a bool as its pattern.
fn is_bool_arm(line: &str) -> bool {
    let arms = ["true =>", "false =>"];
    arms.iter().any(|arm| {
        line.match_indices(arm).any(|(at, _)| {
            let before = line[..at].trim_end();
            before.is_empty() || before.ends_with(['{', ',', '}'])
        })
    })
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn refused(identifier: &str) -> Option<String> {
    if REFUSED_TYPES.contains(&identifier) {
        return Some(format!("`{identifier}` is a refused type name"));
    }
    if REFUSED_PREFIXES.iter().any(|prefix| identifier.starts_with(prefix)) {
        return Some(format!("`{identifier}` has a refused prefix; write `MAX_`"));
    }
    let segments = segments(identifier);
    let word = segments.iter().find(|segment| REFUSED_SEGMENTS.contains(&segment.as_str()))?;
    Some(format!("`{identifier}` has the refused word `{word}`"))
}

/// `was_told` and `WasTold` are both `was` and `told`.
fn segments(identifier: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut after_lower = false;
    for c in identifier.chars() {
        if c == '_' || c.is_uppercase() && after_lower {
            segments.push(String::new());
        }
        if c != '_' {
            let last = segments.last_mut().expect("at least one");
            last.extend(c.to_lowercase());
        }
        after_lower = c.is_lowercase();
    }
    segments
}

/// The code alone. Line breaks stay, so that lines keep their numbers.
fn without_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => line_end(&chars, at),
            ('/', Some('*')) => block_comment_end(&chars, at),
            ('"', _) => string_end(&chars, at),
            ('r', Some('"' | '#')) if !code.ends_with(is_word) => raw_string_end(&chars, at),
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
