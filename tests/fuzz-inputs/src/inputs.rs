//! The number of inputs for each parser in one run of all tests.

/// Bodies of checks, parsed by both parsers.
pub const HTTP_BODIES: u32 = 1_000_000;
/// Bodies of reservations and settlements.
pub const HTTP_RESERVATIONS: u32 = 100_000;
/// Sealed receipts and reservations.
pub const RECEIPTS: u32 = 100_000;
/// Bytes from Redis clients.
pub const RESP: u32 = 300_000;
/// Protocol Buffers messages.
pub const PROTOBUF: u32 = 200_000;
/// Requests of the Envoy protocol.
pub const ENVOY_REQUESTS: u32 = 200_000;
/// The same as JSON.
pub const ENVOY_JSON: u32 = 100_000;
/// Responses of a control plane.
pub const XDS: u32 = 100_000;
/// Rules files.
pub const RULES: u32 = 100_000;
/// Descriptor files.
pub const DESCRIPTORS: u32 = 100_000;
/// API key files.
pub const KEYS: u32 = 100_000;
/// Headers that name the client.
pub const FORWARDED: u32 = 100_000;

const EACH: [u32; 12] = [
    HTTP_BODIES,
    HTTP_RESERVATIONS,
    RECEIPTS,
    RESP,
    PROTOBUF,
    ENVOY_REQUESTS,
    ENVOY_JSON,
    XDS,
    RULES,
    DESCRIPTORS,
    KEYS,
    FORWARDED,
];

/// The total.
pub const TOTAL: u32 = {
    let (mut all, mut at) = (0, 0);
    while at < EACH.len() {
        all += EACH[at];
        at += 1;
    }
    all
};

const _: () = assert!(TOTAL == 2_500_000, "the docs state this figure");

/// The minimum for each parser: none is there only to increase the total.
const MIN_PER_PARSER: u32 = 100_000;

const _: () = {
    let mut at = 0;
    while at < EACH.len() {
        assert!(EACH[at] >= MIN_PER_PARSER, "too few for one of the parsers");
        at += 1;
    }
};

const _: () = assert!(
    TOTAL - HTTP_BODIES >= 1_000_000,
    "the promised million must hold without the parser that has a million of its own"
);
