//! Normalizes the attributes of a request that a program made itself, as edges normalize theirs.
//!
//! Afterwards `ip` and `api_key` are in their fields, and paths, methods and hosts are in normal form. Edges do
//! the same while they parse, and reject invalid values. This path cannot return an error: an invalid address
//! counts as absent, and an ambiguous path counts as its resolved form.

use tidegate_rules::request::{ApiKey, Request, normalize_name, normalize_value};

use crate::identity::{Digest, ip};

pub(super) fn normalize(request: &mut Request<'_>) {
    let mut at = 0;
    while let Some((name, value)) = request.attributes.get_mut(at) {
        match &**name {
            "ip" => {
                let address = ip::parse(value).ok();
                request.ip = request.ip.or(address);
                request.attributes.remove(at);
                continue;
            }
            "api_key" => {
                let key = (!value.is_empty()).then(|| key_by_digest(value));
                request.api_key = request.api_key.or(key);
                request.attributes.remove(at);
                continue;
            }
            "path" | "method" | "host" => {
                let normal = normalize_value(name, std::mem::take(value));
                *value = normal.unwrap_or_else(|ambiguous| ambiguous.resolved.into());
            }
            _ => *name = normalize_name(std::mem::take(name)),
        }
        at += 1;
    }
}

fn key_by_digest<'a>(key: &str) -> ApiKey<'a> {
    ApiKey { digest: *Digest::of(key).as_bytes(), tier: None, name: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_edges_read_them() {
        let mut request = Request::default()
            .with("ip", "203.0.113.9:80")
            .with("path", "/x/../Login/?next=1".to_owned())
            .with("method", "post")
            .with("api_key", "k1")
            .with("header.X-Team", "Red")
            .with("ip", "192.0.2.1");
        normalize(&mut request);
        assert_eq!(request.ip, Some([203, 0, 113, 9].into()));
        assert_eq!(request.api_key, Some(key_by_digest("k1")));
        let attributes = request.attributes.iter().map(|(n, v)| format!("{n}={v}"));
        let want = "path=/Login method=POST header.x-team=Red";
        assert_eq!(attributes.collect::<Vec<_>>().join(" "), want);
    }

    #[test]
    fn a_field_wins_over_an_attribute_and_an_invalid_value_is_absent() {
        let mut request = Request::default().with("ip", "192.0.2.1");
        request.ip = Some([203, 0, 113, 9].into());
        normalize(&mut request);
        assert_eq!(request.ip, Some([203, 0, 113, 9].into()));
        let mut request = Request::default().with("ip", "nobody").with("api_key", "");
        normalize(&mut request);
        assert_eq!((request.ip, request.api_key), (None, None));
        assert!(request.attributes.is_empty());
    }
}
