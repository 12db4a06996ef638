//! How many inputs each parser is given in one run of all tests.

/// Bodies of checks, read by both readers.
pub const HTTP_BODIES: u32 = 1_000_000;
/// Bodies of reservations and settlements.
pub const HTTP_RESERVATIONS: u32 = 100_000;
/// What is sealed in receipts and reservations.
pub const RECEIPTS: u32 = 100_000;
/// Bytes of Redis clients.
pub const RESP: u32 = 300_000;
/// Messages of protocol buffers.
pub const PROTOBUF: u32 = 200_000;
/// Requests of the Envoy protocol.
pub const ENVOY_REQUESTS: u32 = 200_000;
/// The same as JSON.
pub const ENVOY_JSON: u32 = 100_000;
/// What a control plane sends.
pub const XDS: u32 = 100_000;
/// Rules files.
pub const RULES: u32 = 100_000;
/// Files of descriptors.
pub const DESCRIPTORS: u32 = 100_000;
/// Files of API keys.
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

/// All of them.
pub const TOTAL: u32 = {
    let (mut all, mut at) = (0, 0);
    while at < EACH.len() {
        all += EACH[at];
        at += 1;
    }
    all
};

const _: () = assert!(TOTAL == 2_500_000, "as docs tell");

/// What each is given at least: none is there for the sum only.
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
    "the million that is promised, without the parser that is given as many by itself"
);
