//! YAML parsed into a flat list of nodes, each with its line and its text as written.
//!
//! Nothing is typed here: `10` and `off` are texts, and the reader of a field reports what it expected. So one wrong
//! field hides no other, and a message can quote the file. An alias is a pointer, never a copy, and the number of
//! nodes after expanding all aliases is bounded. Knows nothing of rules.

use std::borrow::Cow;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span};
use rustc_hash::FxHashMap;

use super::diagnostics::quoted;

/// Maximum length of a rules file; a folder may have many files.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Maximum number of values in a file, aliases expanded. 100,000 rules have 1,500,000.
const MAX_NODES: u32 = 4_000_000;
/// Maximum nesting depth. A rules file needs seven levels.
const MAX_DEPTH: usize = 32;

/// Estimated bytes of source per node, spaces included, so that the list seldom has to grow.
const ESTIMATED_BYTES_PER_NODE: usize = 8;

/// Why a text could not be parsed, and on which line.
#[derive(Debug)]
pub(crate) struct YamlError {
    pub(crate) line: u32,
    pub(crate) message: String,
}

fn error_at(line: u32, message: impl Into<String>) -> YamlError {
    YamlError { line, message: message.into() }
}

/// A parsed text.
#[derive(Debug, Default)]
pub(crate) struct Document<'a> {
    source: &'a str,
    nodes: Vec<RawNode>,
    /// Texts that are not in the source as they are: escaped or folded.
    owned: Vec<Box<str>>,
}

/// Sixteen bytes, because a large file has more than a million nodes.
#[derive(Clone, Copy, Debug)]
struct RawNode {
    line: u32,
    kind: RawNodeKind,
}

#[derive(Clone, Copy, Debug)]
enum RawNodeKind {
    Null,
    /// A slice of the source.
    Slice {
        start: u32,
        length: u32,
    },
    /// A text in `owned`.
    Owned {
        at: u32,
    },
    /// The children follow, up to `end`. In a mapping, keys and values alternate.
    List {
        end: u32,
    },
    Map {
        end: u32,
    },
    /// The node that an alias stands for.
    Alias {
        target: u32,
    },
}

/// One node of a document.
#[derive(Clone, Copy)]
pub(crate) struct YamlNode<'d> {
    document: &'d Document<'d>,
    at: u32,
    line: u32,
}

/// Value of a node.
pub(crate) enum YamlValue<'d> {
    /// Nothing was written, or `~`, or `null`.
    Null,
    /// A scalar.
    Text(&'d str),
    /// A list.
    List(Children<'d>),
    /// A mapping.
    Map(Pairs<'d>),
}

impl<'d> YamlNode<'d> {
    /// Line where the node is used: for an alias, the line of the alias.
    pub(crate) fn line(self) -> u32 {
        self.line
    }

    pub(crate) fn kind(self) -> YamlValue<'d> {
        match self.document.nodes[self.at as usize].kind {
            RawNodeKind::Null => YamlValue::Null,
            RawNodeKind::Slice { start, length } => YamlValue::Text(self.document.slice(start, length)),
            RawNodeKind::Owned { at } => YamlValue::Text(&self.document.owned[at as usize]),
            RawNodeKind::List { end } => YamlValue::List(self.children(end)),
            RawNodeKind::Map { end } => YamlValue::Map(Pairs(self.children(end))),
            RawNodeKind::Alias { target } => YamlNode { at: target, ..self }.kind(),
        }
    }

    /// The text of a scalar.
    pub(crate) fn text(self) -> Option<&'d str> {
        match self.kind() {
            YamlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What the node is, for an error: its text, or the kind of another value.
    pub(crate) fn describe(self) -> String {
        match self.kind() {
            YamlValue::Null => "nothing".to_owned(),
            YamlValue::Text(text) => quoted(text),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Map(_) => "a mapping".to_owned(),
        }
    }

    /// The text of a scalar that was written without quotes, and so may mean a number or a bool.
    pub(crate) fn unquoted(self) -> Option<&'d str> {
        match self.document.nodes[self.at as usize].kind {
            RawNodeKind::Slice { start, length } => {
                let before = (start as usize).checked_sub(1);
                let before = before.and_then(|at| self.document.source.as_bytes().get(at));
                let quoted = matches!(before, Some(b'"' | b'\''));
                (!quoted).then(|| self.document.slice(start, length))
            }
            RawNodeKind::Alias { target } => YamlNode { at: target, ..self }.unquoted(),
            _ => None,
        }
    }

    fn children(self, end: u32) -> Children<'d> {
        Children { document: self.document, next: self.at + 1, end }
    }

    /// The first index after this node.
    fn end(self) -> u32 {
        match self.document.nodes[self.at as usize].kind {
            RawNodeKind::List { end } | RawNodeKind::Map { end } => end,
            _ => self.at + 1,
        }
    }
}

/// The items of a list.
#[derive(Clone)]
pub(crate) struct Children<'d> {
    document: &'d Document<'d>,
    next: u32,
    end: u32,
}

impl<'d> Iterator for Children<'d> {
    type Item = YamlNode<'d>;

    fn next(&mut self) -> Option<YamlNode<'d>> {
        if self.next >= self.end {
            return None;
        }
        let node = self.document.node(self.next);
        self.next = node.end();
        Some(node)
    }
}

/// The keys and values of a mapping, in order, repeated keys included.
#[derive(Clone)]
pub(crate) struct Pairs<'d>(Children<'d>);

impl<'d> Iterator for Pairs<'d> {
    type Item = (YamlNode<'d>, YamlNode<'d>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}

impl<'a> Document<'a> {
    /// Reads one document. An empty text has no root.
    pub(crate) fn read(text: &'a str) -> Result<Self, YamlError> {
        if text.len() > MAX_FILE_BYTES {
            let max_mib = MAX_FILE_BYTES >> 20;
            let message = format!("is longer than the maximum of {max_mib} MiB; split the file into a folder");
            return Err(error_at(0, message));
        }
        let mut reader = YamlReader::default();
        reader.document.source = text;
        reader.document.nodes.reserve(text.len() / ESTIMATED_BYTES_PER_NODE);
        let options = granit_parser::options! {
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
            emit_comments: false,
        };
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| syntax_error(&error, text))?;
            reader.handle_event(event, &span)?;
        }
        Ok(reader.document)
    }

    pub(crate) fn root(&self) -> Option<YamlNode<'_>> {
        (!self.nodes.is_empty()).then(|| self.node(0))
    }

    fn slice(&self, start: u32, length: u32) -> &str {
        let (start, length) = (start as usize, length as usize);
        self.source.get(start..start + length).unwrap_or("")
    }

    fn node(&self, at: u32) -> YamlNode<'_> {
        YamlNode { document: self, at, line: self.nodes[at as usize].line }
    }
}

/// Collects events into nodes.
#[derive(Default)]
struct YamlReader<'a> {
    document: Document<'a>,
    /// Collections that are not closed yet.
    open: Vec<OpenCollection>,
    anchors: FxHashMap<usize, Anchor>,
    documents: usize,
    /// Number of nodes so far, as if every alias had been written out.
    expanded: u32,
}

struct OpenCollection {
    at: u32,
    anchor: usize,
    expanded_before: u32,
}

struct Anchor {
    at: u32,
    expanded: u32,
}

impl<'a> YamlReader<'a> {
    fn handle_event(&mut self, event: Event<'a>, span: &Span) -> Result<(), YamlError> {
        let line = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
        let tagged = |tag: &Option<_>| match tag {
            Some(_) => Err(error_at(line, "a tag (`!...`) means nothing here; remove it, or put the text in quotes")),
            None => Ok(()),
        };
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message =
                        "a second document begins here; keep one per file, and put the other into a file of its own";
                    return Err(error_at(line, message));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                tagged(&tag)?;
                let kind = self.scalar(text, style == ScalarStyle::Plain);
                let at = self.push(line, kind, 1)?;
                self.anchors.extend((anchor > 0).then_some((anchor, Anchor { at, expanded: 1 })));
            }
            Event::SequenceStart(_, anchor, tag) => {
                tagged(&tag)?;
                self.begin(line, RawNodeKind::List { end: 0 }, anchor)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                tagged(&tag)?;
                self.begin(line, RawNodeKind::Map { end: 0 }, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.finish(),
            Event::Alias(id) => {
                let message = "an alias stands for something that contains it; write the value out";
                let Anchor { at: target, expanded } = *self.anchors.get(&id).ok_or_else(|| error_at(line, message))?;
                self.push(line, RawNodeKind::Alias { target }, expanded)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The position of a text in the source, or a copy of the text.
    fn scalar(&mut self, text: Cow<'a, str>, plain: bool) -> RawNodeKind {
        if plain && matches!(&*text, "" | "~" | "null") {
            return RawNodeKind::Null;
        }
        let start = match &text {
            Cow::Borrowed(part) => self.offset(part),
            Cow::Owned(_) => None,
        };
        if let (Some(start), Ok(length)) = (start, u32::try_from(text.len())) {
            return RawNodeKind::Slice { start, length };
        }
        let at = self.document.owned.len() as u32; // fewer than nodes
        self.document.owned.push(text.into());
        RawNodeKind::Owned { at }
    }

    /// Where `part` begins in the source, if it is a part of it.
    fn offset(&self, part: &str) -> Option<u32> {
        let start = part.as_ptr().addr().checked_sub(self.document.source.as_ptr().addr())?;
        let same = self.document.source.get(start..start + part.len())? == part;
        u32::try_from(start).ok().filter(|_| same)
    }

    fn push(&mut self, line: u32, kind: RawNodeKind, weight: u32) -> Result<u32, YamlError> {
        self.expanded = self.expanded.saturating_add(weight);
        if self.expanded > MAX_NODES {
            let message = if weight > 1 {
                format!("aliases expand to more than {MAX_NODES} values; write the values out or repeat them less")
            } else {
                format!("has more than {MAX_NODES} values; split the file into a folder")
            };
            return Err(error_at(line, message));
        }
        let at = self.document.nodes.len() as u32; // at most MAX_NODES
        self.document.nodes.push(RawNode { line, kind });
        Ok(at)
    }

    fn begin(&mut self, line: u32, kind: RawNodeKind, anchor: usize) -> Result<(), YamlError> {
        let expanded_before = self.expanded;
        let at = self.push(line, kind, 1)?;
        self.open.push(OpenCollection { at, anchor, expanded_before });
        Ok(())
    }

    fn finish(&mut self) {
        let now = self.document.nodes.len() as u32;
        let Some(open) = self.open.pop() else { return };
        if let RawNodeKind::List { end } | RawNodeKind::Map { end } = &mut self.document.nodes[open.at as usize].kind {
            *end = now;
        }
        if open.anchor > 0 {
            let expanded = self.expanded - open.expanded_before;
            self.anchors.insert(open.anchor, Anchor { at: open.at, expanded });
        }
    }
}

/// The error of the parser, with advice for common mistakes.
fn syntax_error(error: &ScanError, text: &str) -> YamlError {
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
