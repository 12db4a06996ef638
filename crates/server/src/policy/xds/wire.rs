//! The messages of the discovery service, as far as they are used here.
//!
//! Requests and responses are encoded and decoded field by field. A resource becomes the same form as a file, so that
//! the same checks apply to both. Unknown fields are skipped.

use crate::config::XdsNodeInfo;
use crate::protobuf::{ProtobufError, ProtobufFields, ProtobufWriter, for_each_field};

/// The resource type of the subscription.
pub(super) const RESOURCE_TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
const INVALID_ARGUMENT: u64 = 3;
/// Maximum length of the errors that are sent to a control plane.
const MAX_REJECTION_BYTES: usize = 4096;

/// A request: the active version, and the result of the last response.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiscoveryRequest<'a> {
    /// The active version, if there is one.
    pub(super) version: &'a str,
    /// The nonce of the response that this request is about. Empty at the beginning of a stream.
    pub(super) nonce: &'a str,
    /// Why that response was rejected.
    pub(super) rejection: Option<&'a str>,
}

impl DiscoveryRequest<'_> {
    /// Encodes the request. The node is sent once per stream.
    pub(super) fn encode(self, node: Option<&XdsNodeInfo>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = ProtobufWriter::to(&mut out);
        w.bytes_if_nonempty(1, self.version.as_bytes());
        if let Some(node) = node {
            w.message(2, |w| write_node(w, node));
        }
        w.bytes(4, RESOURCE_TYPE.as_bytes());
        w.bytes_if_nonempty(5, self.nonce.as_bytes());
        if let Some(rejection) = self.rejection {
            w.message(6, |w| {
                w.uint(1, INVALID_ARGUMENT);
                w.bytes(2, truncate(rejection).as_bytes());
            });
        }
        out
    }
}

fn write_node(w: &mut ProtobufWriter<'_>, node: &XdsNodeInfo) {
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

fn truncate(text: &str) -> &str {
    let mut end = text.len().min(MAX_REJECTION_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A response of the control plane: the complete configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DiscoveryResponse<'a> {
    pub(super) version: &'a str,
    pub(super) nonce: &'a str,
    pub(super) type_url: &'a str,
    /// The type and the bytes of each resource.
    pub(super) resources: Vec<(&'a str, &'a [u8])>,
}

impl<'a> DiscoveryResponse<'a> {
    pub(super) fn decode(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut response = DiscoveryResponse::default();
        for_each_field!(ProtobufFields::of(message), field: {
            1 => response.version = field.text()?,
            2 => response.resources.push(decode_any(field.message()?)?),
            4 => response.type_url = field.text()?,
            5 => response.nonce = field.text()?,
        });
        Ok(response)
    }
}

fn decode_any(fields: ProtobufFields<'_>) -> Result<(&str, &[u8]), ProtobufError> {
    let (mut type_url, mut value) = ("", &[][..]);
    for_each_field!(fields, field: {
        1 => type_url = field.text()?,
        2 => value = field.bytes()?,
    });
    Ok((type_url, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_fields(message: &[u8]) -> Vec<(u32, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ProtobufFields::of(message)
            .map(|field| field.unwrap())
            .map(|field| (field.number, text(field.bytes().unwrap_or_default())))
            .collect()
    }

    #[test]
    fn the_node_is_sent_first_and_rejections_carry_their_errors() {
        let node = XdsNodeInfo { id: "gate".to_owned(), metadata: vec![("zone".to_owned(), "b".to_owned())] };
        let request = DiscoveryRequest { version: "", nonce: "", rejection: None };
        let first_request = request.encode(Some(&node));
        let numbers: Vec<u32> = text_fields(&first_request).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [2, 4]);
        let node_text = text_fields(&first_request)[0].1.clone();
        assert!(node_text.contains("gate") && node_text.contains("zone"), "{node_text}");
        let request = DiscoveryRequest { version: "7", nonce: "n", rejection: Some("bad") };
        let fields = text_fields(&request.encode(None));
        assert_eq!(fields[0], (1, "7".to_owned()));
        assert_eq!(fields[1], (4, RESOURCE_TYPE.to_owned()));
        assert_eq!(fields[2], (5, "n".to_owned()));
        assert!(fields[3].0 == 6 && fields[3].1.contains("bad"), "{fields:?}");
    }

    #[test]
    fn a_long_rejection_is_truncated_between_letters() {
        let long = "ä".repeat(MAX_REJECTION_BYTES);
        assert_eq!(truncate(&long).len(), MAX_REJECTION_BYTES);
        assert_eq!(truncate(&format!("x{long}")).len(), MAX_REJECTION_BYTES - 1);
        assert_eq!(truncate("short"), "short");
    }

    #[test]
    fn a_response_is_decoded_and_half_of_one_is_not() {
        let mut message = Vec::new();
        let mut w = ProtobufWriter::to(&mut message);
        w.bytes(1, b"3");
        for value in ["one", "two"] {
            w.message(2, |w| {
                w.bytes(1, RESOURCE_TYPE.as_bytes());
                w.bytes(2, value.as_bytes());
            });
        }
        w.uint(3, 1);
        w.bytes(4, RESOURCE_TYPE.as_bytes());
        w.bytes(5, b"nonce");
        let want = DiscoveryResponse {
            version: "3",
            nonce: "nonce",
            type_url: RESOURCE_TYPE,
            resources: vec![(RESOURCE_TYPE, b"one"), (RESOURCE_TYPE, b"two")],
        };
        assert_eq!(DiscoveryResponse::decode(&message), Ok(want));
        assert!(DiscoveryResponse::decode(&message[..message.len() - 1]).is_err());
    }
}
