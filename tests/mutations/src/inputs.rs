//! How many inputs each parser is given in one run of all tests.

/// Bodies of checks, read by both readers.
pub const HTTP_BODIES: u32 = 1_000_000;
/// Bytes of Redis clients.
pub const RESP: u32 = 300_000;
/// Messages of protocol buffers.
pub const PROTOBUF: u32 = 200_000;
/// Requests of the Envoy protocol.
pub const ENVOY_REQUESTS: u32 = 200_000;
/// The same as JSON.
pub const ENVOY_JSON: u32 = 100_000;
/// Rules files.
pub const RULES: u32 = 100_000;
/// Files of descriptors.
pub const DESCRIPTORS: u32 = 100_000;
/// Files of API keys.
pub const KEYS: u32 = 100_000;
/// Headers that name the client.
pub const FORWARDED: u32 = 100_000;

/// All of them.
pub const ALL: u32 =
    HTTP_BODIES + PROTOBUF + ENVOY_REQUESTS + ENVOY_JSON + RULES + DESCRIPTORS + KEYS + FORWARDED;

const _: () = assert!(ALL >= 1_000_000, "as many as are promised");
