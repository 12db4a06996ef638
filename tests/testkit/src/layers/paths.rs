//! The paths that a source file uses, in absolute form, without those of its unit tests.

use crate::rust_code::without_comments_and_literals;

/// A path of this crate or of another one: `*` is its last part if everything in it is imported.
pub(super) struct UsedPath {
    pub(super) parts: Vec<String>,
    /// Whether it is a path of this crate.
    pub(super) is_local: bool,
    /// Whether it is imported to be used by other modules.
    pub(super) is_public: bool,
    pub(super) is_macro: bool,
}

/// What a file uses, and the modules that it declares for tests alone.
pub(super) struct FilePaths {
    pub(super) uses: Vec<UsedPath>,
    pub(super) test_modules: Vec<Vec<String>>,
}

/// Keywords that begin an item or a statement, which a comma does not end.
const ITEM_KEYWORDS: [&str; 15] = [
    "mod",
    "fn",
    "use",
    "impl",
    "struct",
    "enum",
    "const",
    "static",
    "type",
    "trait",
    "async",
    "unsafe",
    "extern",
    "macro_rules",
    "let",
];

/// Reads the code of `module`.
pub(super) fn read_paths(text: &str, module: &[String]) -> FilePaths {
    let code = without_comments_and_literals(text);
    let tokens = tokens(&code);
    let mut paths = FilePaths { uses: Vec::new(), test_modules: Vec::new() };
    // The module of the place, and the braces that end its inline modules.
    let (mut module, mut depth, mut ends) = (module.to_vec(), 0_usize, Vec::new());
    let token = |at: usize| tokens.get(at).copied().unwrap_or("");
    let (mut at, mut is_public) = (0, false);
    while at < tokens.len() {
        let was_public = std::mem::take(&mut is_public);
        match token(at) {
            "#" if token(at + 1) == "[" => {
                let end = group_end(&tokens, at + 1);
                if is_for_tests(&tokens[at + 2..end]) {
                    let item = item_start(&tokens, end);
                    if token(item) == "mod" {
                        paths.test_modules.push([module.as_slice(), &[token(item + 1).to_owned()]].concat());
                    }
                    at = item_end(&tokens, item);
                } else {
                    at += 2;
                }
            }
            "pub" => {
                is_public = true;
                at = if token(at + 1) == "(" { group_end(&tokens, at + 1) } else { at + 1 };
            }
            "mod" if token(at + 2) == "{" => {
                module.push(token(at + 1).to_owned());
                ends.push(depth);
                (at, depth) = (at + 3, depth + 1);
            }
            "{" => (at, depth) = (at + 1, depth + 1),
            "}" => {
                (at, depth) = (at + 1, depth.saturating_sub(1));
                if ends.last() == Some(&depth) {
                    ends.pop();
                    module.pop();
                }
            }
            "use" if token(at + 1) != "<" => {
                let mut trees = Vec::new();
                at = read_tree(&tokens, at + 1, &[], &mut trees);
                paths.uses.extend(trees.into_iter().map(|parts| UsedPath::new(&parts, &module, was_public, false)));
            }
            word if is_identifier(word) => {
                let mut parts = vec![word];
                at += 1;
                while token(at) == "::" && is_identifier(token(at + 1)) {
                    parts.push(token(at + 1));
                    at += 2;
                }
                if parts.len() > 1 {
                    paths.uses.push(UsedPath::new(&parts, &module, false, token(at) == "!"));
                }
            }
            _ => at += 1,
        }
    }
    paths
}

impl UsedPath {
    /// The absolute form of a path that is used in `module`.
    fn new(parts: &[&str], module: &[String], is_public: bool, is_macro: bool) -> Self {
        let mut base = match parts.first() {
            Some(&"crate") => Some(Vec::new()),
            Some(&("self" | "super")) => Some(module.to_vec()),
            _ => None,
        };
        let mut rest = parts;
        if let Some(base) = &mut base {
            while let Some((step @ ("crate" | "self" | "super"), after)) = rest.split_first().map(|(a, b)| (*a, b)) {
                if step == "super" {
                    base.pop();
                }
                rest = after;
            }
        }
        let is_local = base.is_some();
        let mut parts = base.unwrap_or_default();
        parts.extend(rest.iter().map(|part| (*part).to_owned()));
        UsedPath { parts, is_local, is_public, is_macro }
    }
}

/// Reads what a `use` imports from `at` on, each as a path after `prefix`. Returns where it ends.
fn read_tree<'a>(tokens: &[&'a str], mut at: usize, prefix: &[&'a str], paths: &mut Vec<Vec<&'a str>>) -> usize {
    let mut parts = prefix.to_vec();
    let token = |at: usize| tokens.get(at).copied().unwrap_or(";");
    loop {
        match token(at) {
            "{" => {
                at += 1;
                while !["}", ";"].contains(&token(at)) {
                    at = read_tree(tokens, at, &parts, paths);
                    at += usize::from(token(at) == ",");
                }
                return at + 1;
            }
            "," | "}" | ";" => {
                paths.push(parts);
                return at;
            }
            "as" => at += 2,
            "::" => at += 1,
            "self" if !parts.is_empty() => at += 1,
            part => {
                parts.push(part);
                at += 1;
            }
        }
    }
}

/// Whether the attribute `cfg(..)` of these tokens holds in tests alone.
fn is_for_tests(attribute: &[&str]) -> bool {
    match attribute {
        ["cfg", "(", "test", ")", ..] => true,
        ["cfg", "(", "all", "(", conditions @ ..] => conditions.contains(&"test") && !conditions.contains(&"not"),
        _ => false,
    }
}

/// Where an item begins, behind its other attributes and its visibility.
fn item_start(tokens: &[&str], mut at: usize) -> usize {
    loop {
        match (tokens.get(at), tokens.get(at + 1)) {
            (Some(&"#"), _) => at = group_end(tokens, at + 1),
            (Some(&"pub"), Some(&"(")) => at = group_end(tokens, at + 1),
            (Some(&"pub"), _) => at += 1,
            _ => return at,
        }
    }
}

/// Where an item, a statement or a field ends.
fn item_end(tokens: &[&str], mut at: usize) -> usize {
    let ends_at_comma = !tokens.get(at).is_some_and(|first| ITEM_KEYWORDS.contains(first));
    while at < tokens.len() {
        match tokens[at] {
            "{" => return group_end(tokens, at),
            ";" => return at + 1,
            "," if ends_at_comma => return at + 1,
            "(" | "[" => at = group_end(tokens, at),
            "}" | ")" | "]" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Behind the bracket that closes the one at `open`.
fn group_end(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

fn is_identifier(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::`, and every other character that is no space.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}
