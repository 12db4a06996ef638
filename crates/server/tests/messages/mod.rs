//! The messages of the Envoy rate limit protocol and of gRPC's health check, encoded and decoded by an independent
//! library. The server's own encoder and decoder are tested against them.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<ProtoEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// Text by its definition. Envoy passes on the bytes of its client unchecked.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<ProtoHeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) request_headers_to_add: Vec<ProtoHeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<ProtoStruct>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub(crate) quota: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<ProtoRateLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<ProtoDuration>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub(crate) quota: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoRateLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoHeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoStruct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: BTreeMap<String, ProtoValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoValue {
    #[prost(oneof = "ProtoKind", tags = "1, 2, 3, 4, 5, 6")]
    pub(crate) kind: Option<ProtoKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ProtoKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(ProtoStruct),
    #[prost(message, tag = "6")]
    List(ProtoListValue),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoListValue {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<ProtoValue>,
}

impl ProtoValue {
    /// As JSON, for readable comparisons.
    pub(crate) fn json(&self) -> serde_json::Value {
        match &self.kind {
            None | Some(ProtoKind::Null(_)) => serde_json::Value::Null,
            Some(ProtoKind::Number(number)) => (*number).into(),
            Some(ProtoKind::Text(text)) => text.as_str().into(),
            Some(ProtoKind::Bool(yes)) => (*yes).into(),
            Some(ProtoKind::Struct(fields)) => fields.json(),
            Some(ProtoKind::List(list)) => list.values.iter().map(ProtoValue::json).collect(),
        }
    }
}

impl ProtoStruct {
    pub(crate) fn json(&self) -> serde_json::Value {
        let fields = self.fields.iter();
        fields.map(|(name, value)| (name.clone(), value.json())).collect()
    }
}
