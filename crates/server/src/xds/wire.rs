//! The messages of the discovery service, as far as they matter here.
//!
//! What is sent and what comes, field by field; a resource becomes the form that files become too, so
//! that one set of checks holds for both. Fields that are not known are passed over.

use crate::protobuf::{Fields, Malformed, Writer};
use crate::xds::Node;

/// What we ask for.
pub(super) const RESOURCE: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// `INVALID_ARGUMENT`.
const REFUSED: u64 = 3;
/// As much of the faults as a plane is told.
const LONGEST_REFUSAL: usize = 4096;

/// What we say: what we have, and what we make of what came last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    /// The version in force, if any came.
    pub(super) version: &'a str,
    /// Which answer this is about; nothing at the beginning of a stream.
    pub(super) nonce: &'a str,
    /// Why that answer was not taken.
    pub(super) refusal: Option<&'a str>,
}

impl Ask<'_> {
    /// On the wire. The node is told once for each stream.
    pub(super) fn write(self, node: Option<&Node>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::to(&mut out);
        w.some_bytes(1, self.version.as_bytes());
        if let Some(node) = node {
            w.message(2, |w| write_node(w, node));
        }
        w.bytes(4, RESOURCE.as_bytes());
        w.some_bytes(5, self.nonce.as_bytes());
        if let Some(refusal) = self.refusal {
            w.message(6, |w| {
                w.uint(1, REFUSED);
                w.bytes(2, cut(refusal).as_bytes());
            });
        }
        out
    }
}

fn write_node(w: &mut Writer<'_>, node: &Node) {
    w.bytes(1, node.id.as_bytes());
    if !node.metadata.is_empty() {
        w.message(3, |w| {
            for (name, value) in &node.metadata {
                w.message(1, |w| {
                    w.bytes(1, name.as_bytes());
                    w.message(2, |w| w.bytes(3, value.as_bytes()));
                });
            }
        });
    }
    w.bytes(6, b"tidegate");
    w.bytes(7, env!("CARGO_PKG_VERSION").as_bytes());
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_REFUSAL);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What a plane sends: all that is to be in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Answer<'a> {
    pub(super) version: &'a str,
    pub(super) nonce: &'a str,
    pub(super) kind: &'a str,
    /// The kind and the bytes of each.
    pub(super) resources: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Answer<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut answer = Answer::default();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => answer.version = field.text()?,
                2 => answer.resources.push(any(field.message()?)?),
                4 => answer.kind = field.text()?,
                5 => answer.nonce = field.text()?,
                _ => {}
            }
        }
        Ok(answer)
    }
}

fn any(fields: Fields<'_>) -> Result<(&str, &[u8]), Malformed> {
    let (mut kind, mut value) = ("", &[][..]);
    for field in fields {
        let field = field?;
        match field.number {
            1 => kind = field.text()?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((kind, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(message: &[u8]) -> Vec<(u32, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Fields::of(message)
            .map(|field| field.unwrap())
            .map(|field| (field.number, text(field.bytes().unwrap_or_default())))
            .collect()
    }

    #[test]
    fn the_node_is_told_at_the_beginning_and_refusals_when_there_are_some() {
        let node = Node {
            id: "gate".to_owned(),
            metadata: vec![("zone".to_owned(), "b".to_owned())],
        };
        let ask = Ask {
            version: "",
            nonce: "",
            refusal: None,
        };
        let hello = ask.write(Some(&node));
        let numbers: Vec<u32> = texts(&hello).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [2, 4]);
        let told = texts(&hello)[0].1.clone();
        assert!(told.contains("gate") && told.contains("zone"), "{told}");
        let ask = Ask {
            version: "7",
            nonce: "n",
            refusal: Some("bad"),
        };
        let said = texts(&ask.write(None));
        assert_eq!(said[0], (1, "7".to_owned()));
        assert_eq!(said[1], (4, RESOURCE.to_owned()));
        assert_eq!(said[2], (5, "n".to_owned()));
        assert!(said[3].0 == 6 && said[3].1.contains("bad"), "{said:?}");
    }

    #[test]
    fn a_long_refusal_is_cut_between_letters() {
        let long = "ä".repeat(LONGEST_REFUSAL);
        assert_eq!(cut(&long).len(), LONGEST_REFUSAL);
        assert_eq!(cut(&format!("x{long}")).len(), LONGEST_REFUSAL - 1);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn an_answer_is_read_and_half_of_one_is_not() {
        let mut message = Vec::new();
        let mut w = Writer::to(&mut message);
        w.bytes(1, b"3");
        for value in ["one", "two"] {
            w.message(2, |w| {
                w.bytes(1, RESOURCE.as_bytes());
                w.bytes(2, value.as_bytes());
            });
        }
        w.uint(3, 1);
        w.bytes(4, RESOURCE.as_bytes());
        w.bytes(5, b"nonce");
        let want = Answer {
            version: "3",
            nonce: "nonce",
            kind: RESOURCE,
            resources: vec![(RESOURCE, b"one"), (RESOURCE, b"two")],
        };
        assert_eq!(Answer::read(&message), Ok(want));
        assert!(Answer::read(&message[..message.len() - 1]).is_err());
    }
}
