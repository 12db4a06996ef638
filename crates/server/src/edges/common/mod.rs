//! What several edges share: attributes in normal form, JSON bodies and the error responses of HTTP.

pub(crate) mod api_error;
mod attributes;
pub(crate) mod check_body;
pub(crate) mod json;

pub(crate) use attributes::{AttributeBuilder, check_name, digest_key};
