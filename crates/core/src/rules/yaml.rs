//! YAML read into a flat list of nodes, each with its line and its text as written.
//!
//! Nothing is typed here: `10`, `off` and `null` are texts, and what reads them says what it wanted.
//! So one wrong field hides no other, and a message can quote what stands in the file. An alias is
//! a pointer, never a copy, and what all of them would expand to is counted and bounded. Knows
//! nothing of rules.

use std::borrow::Cow;

use granit_parser::{Event, Parser, ScalarStyle, Span};
use rustc_hash::FxHashMap;

use super::yaml_words;

/// The longest text that is read as rules; a folder may have many of them.
pub const MOST_BYTES: usize = 16 << 20;
/// The most values a file may have, aliases expanded. 100,000 rules have 1,500,000.
pub(crate) const MOST_NODES: u32 = 4_000_000;
/// The deepest nesting. A rules file needs seven levels.
pub(crate) const MOST_DEPTH: usize = 32;

/// What a node of a rules file takes with its share of spaces, so that the list seldom has to grow.
const USUAL_BYTES_PER_NODE: usize = 8;

/// Why a text was not read, and on which line.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// A text, read.
#[derive(Debug, Default)]
pub(crate) struct Document<'a> {
    source: &'a str,
    nodes: Vec<Raw>,
    /// Texts that do not stand in the source as they are: escaped or folded.
    owned: Vec<Box<str>>,
}

/// Sixteen bytes: a large file has more than a million of them.
#[derive(Clone, Copy, Debug)]
struct Raw {
    line: u32,
    kind: RawKind,
}

#[derive(Clone, Copy, Debug)]
enum RawKind {
    Nothing,
    /// A part of the source.
    Part {
        start: u32,
        length: u32,
    },
    /// A text of its own.
    Owned {
        at: u32,
    },
    /// The children follow, up to `end`; of a mapping, keys and values take turns.
    List {
        end: u32,
    },
    Map {
        end: u32,
    },
    /// The node an alias stands for.
    Same {
        target: u32,
    },
}

/// One node of a document.
#[derive(Clone, Copy)]
pub(crate) struct Node<'d> {
    document: &'d Document<'d>,
    at: u32,
    line: u32,
}

/// What a node holds.
pub(crate) enum Kind<'d> {
    /// Nothing was written, or `~`, or `null`.
    Nothing,
    /// A scalar.
    Text(&'d str),
    /// A list.
    List(Children<'d>),
    /// A mapping.
    Map(Pairs<'d>),
}

impl<'d> Node<'d> {
    /// Where it is used: for an alias, the line of the alias.
    pub(crate) fn line(self) -> u32 {
        self.line
    }

    pub(crate) fn kind(self) -> Kind<'d> {
        match self.document.nodes[self.at as usize].kind {
            RawKind::Nothing => Kind::Nothing,
            RawKind::Part { start, length } => Kind::Text(self.document.part(start, length)),
            RawKind::Owned { at } => Kind::Text(&self.document.owned[at as usize]),
            RawKind::List { end } => Kind::List(self.children(end)),
            RawKind::Map { end } => Kind::Map(Pairs(self.children(end))),
            RawKind::Same { target } => Node { at: target, ..self }.kind(),
        }
    }

    /// The text of a scalar.
    pub(crate) fn text(self) -> Option<&'d str> {
        match self.kind() {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a scalar that was written without quotes, and so may mean a number or a yes.
    pub(crate) fn plain(self) -> Option<&'d str> {
        match self.document.nodes[self.at as usize].kind {
            RawKind::Part { start, length } => {
                let before = (start as usize).checked_sub(1);
                let before = before.and_then(|at| self.document.source.as_bytes().get(at));
                let quoted = matches!(before, Some(b'"' | b'\''));
                (!quoted).then(|| self.document.part(start, length))
            }
            RawKind::Same { target } => Node { at: target, ..self }.plain(),
            _ => None,
        }
    }

    fn children(self, end: u32) -> Children<'d> {
        Children {
            document: self.document,
            next: self.at + 1,
            end,
        }
    }

    /// The first index after this node.
    fn end(self) -> u32 {
        match self.document.nodes[self.at as usize].kind {
            RawKind::List { end } | RawKind::Map { end } => end,
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
    type Item = Node<'d>;

    fn next(&mut self) -> Option<Node<'d>> {
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
    type Item = (Node<'d>, Node<'d>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}

impl<'a> Document<'a> {
    /// Reads one document. An empty text has no root.
    pub(crate) fn read(text: &'a str) -> Result<Self, Unreadable> {
        if text.len() > MOST_BYTES {
            return Err(yaml_words::too_long());
        }
        let mut reader = Reader {
            source: text,
            ..Reader::default()
        };
        reader.nodes.reserve(text.len() / USUAL_BYTES_PER_NODE);
        let options = granit_parser::options! {
            flow_nesting_limit: MOST_DEPTH,
            block_nesting_limit: MOST_DEPTH,
            emit_comments: false,
        };
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| yaml_words::unparsed(&error, text))?;
            reader.take(event, &span)?;
        }
        Ok(Document {
            source: text,
            nodes: reader.nodes,
            owned: reader.owned,
        })
    }

    pub(crate) fn root(&self) -> Option<Node<'_>> {
        (!self.nodes.is_empty()).then(|| self.node(0))
    }

    fn part(&self, start: u32, length: u32) -> &str {
        let (start, length) = (start as usize, length as usize);
        self.source.get(start..start + length).unwrap_or("")
    }

    fn node(&self, at: u32) -> Node<'_> {
        Node {
            document: self,
            at,
            line: self.nodes[at as usize].line,
        }
    }
}

/// Collects events into nodes.
#[derive(Default)]
struct Reader<'a> {
    source: &'a str,
    nodes: Vec<Raw>,
    owned: Vec<Box<str>>,
    /// The collections that are open.
    open: Vec<Open>,
    anchors: FxHashMap<usize, Anchor>,
    documents: usize,
    /// Nodes so far, as if every alias had been written out.
    expanded: u32,
}

struct Open {
    at: u32,
    anchor: usize,
    expanded_before: u32,
}

struct Anchor {
    at: u32,
    expanded: u32,
}

impl<'a> Reader<'a> {
    fn take(&mut self, event: Event<'a>, span: &Span) -> Result<(), Unreadable> {
        let line = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
        let tagged = |tag: &Option<_>| match tag {
            Some(_) => Err(yaml_words::tagged(line)),
            None => Ok(()),
        };
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(yaml_words::second_document(line));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                tagged(&tag)?;
                let kind = self.scalar(text, style == ScalarStyle::Plain);
                let at = self.push(line, kind, 1)?;
                self.anchors
                    .extend((anchor > 0).then_some((anchor, Anchor { at, expanded: 1 })));
            }
            Event::SequenceStart(_, anchor, tag) => {
                tagged(&tag)?;
                self.begin(line, RawKind::List { end: 0 }, anchor)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                tagged(&tag)?;
                self.begin(line, RawKind::Map { end: 0 }, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.finish(),
            Event::Alias(id) => {
                let anchor = self
                    .anchors
                    .get(&id)
                    .ok_or_else(|| yaml_words::endless(line))?;
                let (target, expanded) = (anchor.at, anchor.expanded);
                self.push(line, RawKind::Same { target }, expanded)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a text stands in the source, or a copy of it.
    fn scalar(&mut self, text: Cow<'a, str>, plain: bool) -> RawKind {
        if plain && matches!(&*text, "" | "~" | "null") {
            return RawKind::Nothing;
        }
        let start = match &text {
            Cow::Borrowed(part) => self.offset(part),
            Cow::Owned(_) => None,
        };
        if let (Some(start), Ok(length)) = (start, u32::try_from(text.len())) {
            return RawKind::Part { start, length };
        }
        let at = self.owned.len() as u32; // fewer than nodes
        self.owned.push(text.into());
        RawKind::Owned { at }
    }

    /// Where `part` begins in the source, if it is a part of it.
    fn offset(&self, part: &str) -> Option<u32> {
        let start = part
            .as_ptr()
            .addr()
            .checked_sub(self.source.as_ptr().addr())?;
        let same = self.source.get(start..start + part.len())? == part;
        u32::try_from(start).ok().filter(|_| same)
    }

    fn push(&mut self, line: u32, kind: RawKind, weight: u32) -> Result<u32, Unreadable> {
        self.expanded = self.expanded.saturating_add(weight);
        if self.expanded > MOST_NODES {
            return Err(yaml_words::too_many(line, weight > 1));
        }
        let at = self.nodes.len() as u32; // at most MOST_NODES
        self.nodes.push(Raw { line, kind });
        Ok(at)
    }

    fn begin(&mut self, line: u32, kind: RawKind, anchor: usize) -> Result<(), Unreadable> {
        let expanded_before = self.expanded;
        let at = self.push(line, kind, 1)?;
        self.open.push(Open {
            at,
            anchor,
            expanded_before,
        });
        Ok(())
    }

    fn finish(&mut self) {
        let now = self.nodes.len() as u32;
        let Some(open) = self.open.pop() else { return };
        if let RawKind::List { end } | RawKind::Map { end } = &mut self.nodes[open.at as usize].kind
        {
            *end = now;
        }
        if open.anchor > 0 {
            let expanded = self.expanded - open.expanded_before;
            let at = open.at;
            self.anchors.insert(open.anchor, Anchor { at, expanded });
        }
    }
}
