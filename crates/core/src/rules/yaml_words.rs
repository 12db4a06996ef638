//! The words for a text that is not a YAML document we read.

use granit_parser::{ErrorKind, ScanError};

use super::fault::shown;
use super::yaml::{MOST_BYTES, MOST_DEPTH, MOST_NODES, Unreadable};

fn at(line: u32, message: impl Into<String>) -> Unreadable {
    Unreadable {
        line,
        message: message.into(),
    }
}

pub(crate) fn too_long() -> Unreadable {
    let most = MOST_BYTES >> 20;
    let message =
        format!("is longer than the {most} MiB that are read; split the file into a folder");
    at(0, message)
}

pub(crate) fn too_many(line: u32, by_alias: bool) -> Unreadable {
    at(
        line,
        if by_alias {
            format!(
                "aliases expand to more than {MOST_NODES} values; write the values out or repeat them less"
            )
        } else {
            format!("has more than {MOST_NODES} values; split the file into a folder")
        },
    )
}

pub(crate) fn endless(line: u32) -> Unreadable {
    at(
        line,
        "an alias stands for something that contains it; write the value out",
    )
}

pub(crate) fn tagged(line: u32) -> Unreadable {
    at(
        line,
        "a tag (`!...`) means nothing here; remove it, or put the text in quotes",
    )
}

pub(crate) fn second_document(line: u32) -> Unreadable {
    at(
        line,
        "a second document begins here; keep one per file, and put the other into a file of its own",
    )
}

/// What the parser could not read, with what to write for the mistakes people make.
pub(crate) fn unparsed(error: &ScanError, text: &str) -> Unreadable {
    let line = error.marker().line();
    let written = text
        .lines()
        .nth(line.saturating_sub(1))
        .unwrap_or("")
        .trim();
    let message = match error.kind() {
        ErrorKind::RecursionLimitExceeded => {
            format!("is nested more than {MOST_DEPTH} levels deep; a rules file needs seven")
        }
        ErrorKind::UnknownAnchor => format!(
            "{} uses an alias that nothing defines; a text that begins with `*` must be in quotes",
            shown(written)
        ),
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation => {
            "a tab stands where YAML wants spaces; write spaces".to_owned()
        }
        ErrorKind::MissingAnchorOrAliasName => format!(
            "{} is not YAML; a text that begins with `*` or `&` must be in quotes",
            shown(written)
        ),
        kind => format!("{} is not YAML: {kind}", shown(written)),
    };
    at(u32::try_from(line).unwrap_or(u32::MAX), message)
}
