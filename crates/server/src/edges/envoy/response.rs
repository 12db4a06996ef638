//! Encodes a decision as a `RateLimitResponse`.

use tidegate::http::ResponseContext;
use tidegate_rules::Metadata;
use tidegate_rules::engine::DescriptorResponse;
use tidegate_rules::envoy::{Status, StatusLimit};

use super::wire::{EnvoyRequest, unit_number};
use super::{headers, metadata};
use crate::config::EnvoyOptions;
use crate::protobuf::ProtobufWriter;

const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// The parts of a response.
pub(super) struct EnvoyResponse<'a, 'v> {
    pub(super) request: &'a EnvoyRequest<'v>,
    pub(super) judged: &'a DescriptorResponse<'v>,
    pub(super) options: &'a EnvoyOptions,
    pub(super) context: ResponseContext<'a>,
}

impl EnvoyResponse<'_, '_> {
    /// Appends the message to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut message = ProtobufWriter::to(out);
        message.uint(1, code(self.judged.over_limit));
        for status in &self.judged.statuses {
            message.message(2, |w| write_status(status, w));
        }
        self.each_header(|name, value| {
            message.message(3, |w| {
                w.bytes(1, name.as_bytes());
                w.bytes(2, value);
            });
        });
        if let Some(metadata) = self.metadata() {
            message.message(6, |w| write_fields(&metadata, w));
        }
    }

    /// Calls `each` with the headers for the client.
    pub(super) fn each_header(&self, each: impl FnMut(&str, &[u8])) {
        headers::for_each_header(&self.options.headers, self.judged, &self.context, each);
    }

    /// The dynamic metadata, if it is enabled.
    pub(super) fn metadata(&self) -> Option<Vec<(Box<str>, Metadata)>> {
        let wanted = self.options.dynamic_metadata;
        wanted.then(|| metadata::dynamic_metadata(self.request, &self.judged.statuses))
    }
}

fn code(over: bool) -> u64 {
    if over { OVER_LIMIT } else { OK }
}

fn write_status(status: &Status<'_>, w: &mut ProtobufWriter<'_>) {
    w.uint(1, code(status.over_limit));
    if let Some(limit) = &status.limit {
        w.message(2, |w| write_limit(limit, w));
    }
    w.uint_if_nonzero(3, status.remaining.into());
    if let Some(reset) = status.reset_after {
        w.message(4, |w| w.uint_if_nonzero(1, reset.secs_up()));
    }
}

fn write_limit(limit: &StatusLimit<'_>, w: &mut ProtobufWriter<'_>) {
    w.uint_if_nonzero(1, limit.requests.into());
    w.uint_if_nonzero(2, limit.unit.map_or(0, unit_number).into());
    w.bytes_if_nonempty(3, limit.name.unwrap_or_default().as_bytes());
}

/// Writes a `google.protobuf.Struct`.
fn write_fields(fields: &[(Box<str>, Metadata)], w: &mut ProtobufWriter<'_>) {
    for (name, value) in fields {
        w.message(1, |w| {
            w.bytes(1, name.as_bytes());
            w.message(2, |w| write_value(value, w));
        });
    }
}

/// Writes a `google.protobuf.Value`.
fn write_value(value: &Metadata, w: &mut ProtobufWriter<'_>) {
    match value {
        Metadata::Null => w.uint(1, 0),
        Metadata::Number(number) => w.double(2, *number),
        Metadata::Text(text) => w.bytes(3, text.as_bytes()),
        Metadata::Bool(yes) => w.uint(4, u64::from(*yes)),
        Metadata::Map(fields) => w.message(5, |w| write_fields(fields, w)),
        Metadata::List(values) => w.message(6, |w| {
            for value in values {
                w.message(1, |w| write_value(value, w));
            }
        }),
    }
}

#[cfg(test)]
mod tests;
