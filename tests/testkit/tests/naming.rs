//! Names of the workspace: a type name exists once, refused words do not come back, and `if` decides on booleans.
//!
//! Each refused word was once used here in place of a word that the field already has. Words are refused in every text,
//! names of types and constants in code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_testkit::rust_code::without_comments_and_literals;

/// Whole segments of identifiers and whole words of text: `told` is refused, `stolen_total` is not.
const REFUSED_SEGMENTS: [&str; 9] =
    ["told", "untold", "asked", "tended", "owed", "reign", "vitals", "annex", "refusal"];

const REFUSED_TYPES: [&str; 4] = ["Misfit", "Nonsense", "Garbled", "Unfit"];

/// Constants that bound something are called `MAX_`.
const REFUSED_PREFIXES: [&str; 3] = ["MOST_", "LONGEST_", "LARGEST_"];

/// The changelog and pages of figures stay as they were written.
const READ: [&str; 8] = ["crates", "tests", "bench", "docs", "examples", "scripts", "README.md", "ARCHITECTURE.md"];
/// This file has the refused words and the planted violations.
const NOT_READ: [&str; 3] = ["target", "bench/results", "tests/testkit/tests/naming.rs"];
const EXTENSIONS: [&str; 8] = ["rs", "lua", "yaml", "json", "md", "toml", "py", "cjs"];

const TYPE_KEYWORDS: [&str; 4] = ["struct", "enum", "trait", "union"];

/// A file: where it is, and its text.
type SourceText = (String, String);

#[test]
fn the_workspace_keeps_to_its_vocabulary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for part in READ {
        collect_files(&root.join(part), &mut files);
    }
    assert!(files.len() > 900, "only {} files found", files.len());
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
    for other in [
        "pub(in crate::edges) struct Twice;",
        "#[derive(Debug)] struct Twice;",
        "unsafe trait Twice {}",
        "#[allow(unused)] pub(crate) type Twice = u8;",
        "struct Once; struct Twice;",
        "macro_rules! make { ($name:ident {}) => { struct $name; } }\nmake!(\n    /// Made.\n    #[a] Twice {});",
    ] {
        check_found(&["struct Twice;", other], "type `Twice` is defined 2 times");
    }
    for text in [
        "let was_told = 1;",
        "let told2 = 1;",
        "let limit = TTLTold;",
        "let raw = br#\"\" \"#; let told = 1;",
        "// As it was told.",
        "let help = \"what it was told\";",
    ] {
        check_found(&[text], "has the refused word `told`");
    }
    check_found(&["struct OwedUnits;"], "`OwedUnits` has the refused word `owed`");
    check_found(&["struct Misfit;"], "`Misfit` is a refused type name");
    check_found(&["let raw = br#\" \" \"#; struct Misfit;"], "`Misfit` is a refused type name");
    check_found(&["const MOST_KEYS: u8 = 1;"], "`MOST_KEYS` has a refused prefix");
    for arms in [
        "match a { true => 1, false => 2 }",
        "true if late => 1,",
        "(true) => 1,",
        "true | false => 1,",
        "(true) | (false) => 1,",
        "print(match a { false => f(1, 2), true => 2 })",
    ] {
        check_found(&[arms], "match on a bool");
    }
    check_text_found("charge.lua", "-- units that a client owed", "`owed` has the refused word `owed`");
    check_text_found("builtin.yaml", "# enough to see a refusal", "`refusal` has the refused word `refusal`");
}

#[test]
fn what_only_looks_like_a_violation_is_not_found() {
    for text in [
        "// Misfit, MOST_KEYS, stolen, struct Twice, struct Twice\nlet text = \"Misfit\";",
        "let raw = r#\"Misfit \"MOST_\" \"#; let c = '\"'; let d: &'static str = r\"Misfit\";",
        "/* Misfit /* MOST_ */ Misfit */ let borrowed = foreign;",
        "match (a, b) { (true, _) => 1, (_, true) => 2, (_, true) | (true, _) if late => 3, _ => 4 }",
        "match a { (A { .. }, false) => 1, (A { .. } | B, true) if late => 2, _ => 3 }",
        "match a { Some(true) => 1, Some(false) if late => 2, None => 3 } let late = true;",
        "impl A for B { \n    type Output = u8;\n} impl A for C {\n    type Output = u8;\n}",
        "impl A for B { type Output = u8; }\nimpl A for C { type Output = u8; }",
        "assert_eq!(Point { x: 1 }, Point { x: 2 });",
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
    assert!(found.len() == 1 && found[0].contains(want), "{texts:?}: {found:?}");
}

#[track_caller]
fn check_text_found(name: &str, text: &str, want: &str) {
    let found = violations(&[(name.to_owned(), text.to_owned())]);
    assert!(found.len() == 1 && found[0].contains(want), "{text}: {found:?}");
}

fn collect_files(path: &Path, files: &mut Vec<PathBuf>) {
    if NOT_READ.iter().any(|skipped| path.ends_with(skipped)) {
        return;
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder");
        for entry in entries {
            collect_files(&entry.expect("an entry").path(), files);
        }
    } else if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|read| extension == *read)) {
        files.push(path.to_owned());
    }
}

/// All violations, each with its place.
fn violations(files: &[SourceText]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in files {
        for (i, line) in text.lines().enumerate() {
            let reasons = identifiers(line).filter_map(refused_word);
            found.extend(reasons.map(|reason| format!("{name}:{}: {reason}", i + 1)));
        }
    }
    let is_rust = |name: &str| Path::new(name).extension().is_some_and(|extension| extension == "rs");
    let rust = files.iter().filter(|(name, _)| is_rust(name));
    let code: Vec<SourceText> = rust.map(|(name, text)| (name.clone(), without_comments_and_literals(text))).collect();
    let makers: BTreeSet<&str> = code.iter().flat_map(|(_, code)| type_making_macros(code)).collect();
    let mut types: BTreeMap<(bool, &str), Vec<String>> = BTreeMap::new();
    for (name, code) in &code {
        // A workspace of its own.
        let is_bench = name.starts_with("bench/");
        for (i, line) in code.lines().enumerate() {
            let place = format!("{name}:{}", i + 1);
            for defined in defined_types(line) {
                types.entry((is_bench, defined)).or_default().push(place.clone());
            }
            if has_bool_arm(line) {
                found.push(format!("{place}: match on a bool; write `if`"));
            }
            let reasons = identifiers(line).filter_map(refused_name);
            found.extend(reasons.map(|reason| format!("{place}: {reason}")));
        }
        for (line, made) in makers.iter().flat_map(|maker| made_types(code, maker)) {
            types.entry((is_bench, made)).or_default().push(format!("{name}:{line}"));
        }
    }
    for ((_, defined), places) in types.into_iter().filter(|(_, places)| places.len() > 1) {
        let (count, places) = (places.len(), places.join(", "));
        found.push(format!("type `{defined}` is defined {count} times: {places}"));
    }
    found
}

/// The types that a line defines. Associated types are not types of their own.
fn defined_types(line: &str) -> impl Iterator<Item = &str> {
    let is_item = !line.starts_with(char::is_whitespace);
    word_starts(line).filter_map(move |at| {
        let keyword = first_word(&line[at..]);
        let is_alias = keyword == "type" && is_item && !line[..at].contains(['{', '=']);
        let rest = &line[at + keyword.len()..];
        let name = first_word(rest.trim_start());
        let is_type = is_alias || TYPE_KEYWORDS.contains(&keyword) && rest.starts_with(char::is_whitespace);
        (is_type && !name.is_empty()).then_some(name)
    })
}

/// The macros of a file that define a type by the name that they are given.
fn type_making_macros(code: &str) -> impl Iterator<Item = &str> {
    let definitions = code.split("macro_rules!").skip(1);
    let makers = definitions.filter(|text| TYPE_KEYWORDS.iter().any(|keyword| text.contains(&format!("{keyword} $"))));
    makers.map(|text| first_word(text.trim_start()))
}

/// The types that the calls of a macro define, each with its line: `maker!(Name { .. })`.
fn made_types<'a>(code: &'a str, maker: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let call = format!("{maker}!");
    let places: Vec<usize> = code.match_indices(&call).map(|(at, _)| at + call.len()).collect();
    places.into_iter().filter_map(|at| {
        let mut rest = code[at..].trim_start().strip_prefix(['(', '{', '['])?.trim_start();
        while let Some(attribute) = rest.strip_prefix('#') {
            rest = attribute.split_once(']')?.1.trim_start();
        }
        let name = first_word(rest);
        let is_name = name.starts_with(char::is_uppercase) && rest[name.len()..].trim_start().starts_with('{');
        is_name.then(|| (code[..at].matches('\n').count() + 1, name))
    })
}

/// Whether an arm of a `match` has nothing but bools as its pattern.
fn has_bool_arm(line: &str) -> bool {
    let is_part = |c: char| c.is_whitespace() || "(|)".contains(c);
    word_starts(line).any(|at| {
        let word = first_word(&line[at..]);
        if word != "true" && word != "false" {
            return false;
        }
        // What is left of the line without this pattern.
        let mut before = line[..at].trim_end_matches(is_part);
        while let Some(shorter) = before.strip_suffix("true").or_else(|| before.strip_suffix("false")) {
            before = shorter.trim_end_matches(is_part);
        }
        let mut after = line[at + word.len()..].trim_start_matches(is_part);
        while let Some(shorter) = after.strip_prefix("true").or_else(|| after.strip_prefix("false")) {
            after = shorter.trim_start_matches(is_part);
        }
        let begins = before.is_empty() || before.ends_with(['{', ',', '}']);
        let ends = after.starts_with("=>") || after.starts_with("if ") && after.contains("=>");
        begins && ends && !is_inside_parentheses(before)
    })
}

/// Whether code ends inside parentheses or brackets that are still open.
fn is_inside_parentheses(code: &str) -> bool {
    let mut closed = 0_usize;
    let open = code.chars().rev().find(|c| match c {
        ')' | ']' | '}' => {
            closed += 1;
            false
        }
        '(' | '[' | '{' if closed > 0 => {
            closed -= 1;
            false
        }
        c => "([{".contains(*c),
    });
    open.is_some_and(|open| open != '{')
}

/// Where the words of a line begin.
fn word_starts(line: &str) -> impl Iterator<Item = usize> {
    let is_start = move |at: usize| !line[..at].ends_with(is_word);
    line.char_indices().filter(|(_, c)| is_word(*c)).map(|(at, _)| at).filter(move |at| is_start(*at))
}

fn first_word(text: &str) -> &str {
    &text[..text.find(|c: char| !is_word(c)).unwrap_or(text.len())]
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn refused_name(identifier: &str) -> Option<String> {
    if REFUSED_TYPES.contains(&identifier) {
        return Some(format!("`{identifier}` is a refused type name"));
    }
    let is_refused = REFUSED_PREFIXES.iter().any(|prefix| identifier.starts_with(prefix));
    is_refused.then(|| format!("`{identifier}` has a refused prefix; write `MAX_`"))
}

fn refused_word(identifier: &str) -> Option<String> {
    let segments = segments(identifier);
    let word = segments.iter().find(|segment| REFUSED_SEGMENTS.contains(&segment.as_str()))?;
    Some(format!("`{identifier}` has the refused word `{word}`"))
}

/// `was_told`, `WasTold`, `TTLTold` and `told2` all have `told`.
fn segments(identifier: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut chars = identifier.chars().peekable();
    let mut before = '_';
    while let Some(c) = chars.next() {
        let ends_capitals = before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (before.is_lowercase() || ends_capitals) || !c.is_alphabetic() {
            segments.push(String::new());
        }
        if c.is_alphabetic() {
            let last = segments.last_mut().expect("at least one");
            last.extend(c.to_lowercase());
        }
        before = c;
    }
    segments
}
