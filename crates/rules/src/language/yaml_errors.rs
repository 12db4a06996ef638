//! Error messages for texts that are not a supported YAML document.

use granit_parser::{ErrorKind, ScanError};

use super::diagnostics::quoted;
use super::yaml::{MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES, YamlError};

fn error_at(line: u32, message: impl Into<String>) -> YamlError {
    YamlError { line, message: message.into() }
}

pub(crate) fn file_too_long() -> YamlError {
    let max_mib = MAX_FILE_BYTES >> 20;
    let message = format!("is longer than the maximum of {max_mib} MiB; split the file into a folder");
    error_at(0, message)
}

pub(crate) fn too_many_nodes(line: u32, by_alias: bool) -> YamlError {
    error_at(
        line,
        if by_alias {
            format!("aliases expand to more than {MAX_NODES} values; write the values out or repeat them less")
        } else {
            format!("has more than {MAX_NODES} values; split the file into a folder")
        },
    )
}

pub(crate) fn recursive_alias(line: u32) -> YamlError {
    error_at(line, "an alias stands for something that contains it; write the value out")
}

pub(crate) fn unsupported_tag(line: u32) -> YamlError {
    error_at(line, "a tag (`!...`) means nothing here; remove it, or put the text in quotes")
}

pub(crate) fn second_document(line: u32) -> YamlError {
    error_at(line, "a second document begins here; keep one per file, and put the other into a file of its own")
}

/// The error of the parser, with advice for common mistakes.
pub(crate) fn syntax_error(error: &ScanError, text: &str) -> YamlError {
    let line = error.marker().line();
    let source_line = text.lines().nth(line.saturating_sub(1)).unwrap_or("").trim();
    let message = match error.kind() {
        ErrorKind::RecursionLimitExceeded => {
            format!("is nested more than {MAX_DEPTH} levels deep; a rules file needs seven")
        }
        ErrorKind::UnknownAnchor => format!(
            "{} uses an alias that nothing defines; a text that begins with `*` must be in quotes",
            quoted(source_line)
        ),
        ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation => {
            "has a tab where YAML requires spaces; write spaces".to_owned()
        }
        ErrorKind::MissingAnchorOrAliasName => {
            format!("{} is not YAML; a text that begins with `*` or `&` must be in quotes", quoted(source_line))
        }
        kind => format!("{} is not YAML: {kind}", quoted(source_line)),
    };
    error_at(u32::try_from(line).unwrap_or(u32::MAX), message)
}
