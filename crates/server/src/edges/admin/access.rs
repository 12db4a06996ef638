//! Access control of the admin listener.

use http::request::Parts;
use http::uri::Authority;
use http::{Method, header};
use std::net::IpAddr;
use std::path::Path;

use crate::config::{EndpointAddress, ListenAddress};
use crate::decider::InputError;
use crate::edges::common::api_error::ApiError;
use crate::edges::common::secret_digest::{MIN_SECRET_LEN, SecretDigest};

/// The conditions that a request to the admin listener must meet.
#[derive(Clone)]
pub(crate) struct AdminAccess {
    token: Option<SecretDigest>,
    hosts: Vec<String>,
}

impl AdminAccess {
    /// Access control for a listener at `address`, before it opens, or why it cannot be opened as configured.
    pub(crate) fn new(address: &ListenAddress, token_file: Option<&Path>, hosts: &[String]) -> Result<Self, String> {
        let token = token_file.map(read_token).transpose()?;
        if token.is_none() && !address.is_local() {
            // Any machine on the network could use it.
            return Err(format!(
                "--admin {address} can be reached from other machines; set --admin-token-file, or listen on loopback"
            ));
        }
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(AdminAccess { token, hosts })
    }

    /// Checks that this request may be served.
    pub(crate) fn authorize(&self, peer: &EndpointAddress, parts: &Parts) -> Result<(), ApiError> {
        let authority = request_authority(parts)?;
        let host = authority.as_deref().map(host_without_port);
        // A web page cannot know the token. With a token the host is therefore checked only against configured names.
        let must_check_host =
            matches!(peer, EndpointAddress::Tcp(_)) && (self.token.is_none() || !self.hosts.is_empty());
        if must_check_host && !host.is_some_and(|host| self.is_allowed_host(host)) {
            return Err(ApiError::UnknownHost);
        }
        let is_read_only = matches!(parts.method, Method::GET | Method::HEAD);
        if let Some(origin) = parts.headers.get(header::ORIGIN)
            && !is_read_only
        {
            let origin = origin.to_str().unwrap_or_default();
            let origin_authority = origin.split_once("://").map(|(_, authority)| authority.to_ascii_lowercase());
            if origin_authority.is_none() || origin_authority != authority {
                return Err(ApiError::CrossOrigin);
            }
        }
        match &self.token {
            Some(token) if !has_token(parts, token) => Err(ApiError::WrongToken),
            _ => Ok(()),
        }
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost"
            || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
            || self.hosts.iter().any(|known| known == host)
    }
}

/// Whether the request carries `expected` as a bearer token.
fn has_token(parts: &Parts, expected: &SecretDigest) -> bool {
    let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, token)) = header.and_then(|value| value.split_once([' ', '\t'])) else {
        return false;
    };
    scheme.eq_ignore_ascii_case("bearer") && expected.matches(token.trim().as_bytes())
}

fn read_token(file: &Path) -> Result<SecretDigest, String> {
    let token_file_error = |reason: String| format!("--admin-token-file {}: {reason}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| token_file_error(error.to_string()))?;
    let token = text.trim();
    if token.len() < MIN_SECRET_LEN {
        return Err(token_file_error(format!("a token has {MIN_SECRET_LEN} characters or more")));
    }
    Ok(SecretDigest::of(token))
}

/// The authority that the request is addressed to: `host:port`, in lower case. The authority of the target takes
/// precedence over that of the header, as in RFC 9112, 3.2.2.
///
/// # Errors
/// Two `Host` lines: another reader of the request may take the other one.
fn request_authority(parts: &Parts) -> Result<Option<String>, ApiError> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(InputError::new("host", "has more than one line; send one").into());
    }
    let target = parts.uri.authority().map(Authority::as_str);
    let authority = target.or_else(|| line.and_then(|line| line.to_str().ok()));
    Ok(authority.map(str::to_ascii_lowercase))
}

fn host_without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn local() -> EndpointAddress {
        EndpointAddress::Tcp("127.0.0.1:8082".parse().unwrap())
    }

    fn address(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    fn check(access: &AdminAccess, method: &str, headers: &[(&str, &str)]) -> Result<(), ApiError> {
        access.authorize(&local(), &parts(method, "/metrics", headers))
    }

    #[test]
    fn a_host_name_that_an_attacker_points_at_loopback_is_rejected() {
        let access = AdminAccess::new(&address("127.0.0.1:8082"), None, &["ops.example".to_owned()]).unwrap();
        for host in ["localhost:8082", "127.0.0.1", "[::1]:8082", "ops.example:8082", "LOCALHOST"] {
            assert_eq!(check(&access, "GET", &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example:8082", "127.0.0.1.evil.example", "192.0.2.1", ""] {
            assert_eq!(check(&access, "GET", &[("host", host)]), Err(ApiError::UnknownHost), "{host}");
        }
        assert_eq!(check(&access, "GET", &[]), Err(ApiError::UnknownHost));
    }

    /// Only the first line was checked, and the authority of the target not at all where there was a line.
    #[test]
    fn a_request_with_two_hosts_cannot_hide_the_one_of_an_attacker() {
        let access = AdminAccess::new(&address("127.0.0.1:8082"), None, &[]).unwrap();
        for pair in [["localhost", "evil.example"], ["evil.example", "localhost"]] {
            let two = check(&access, "GET", &pair.map(|host| ("host", host)));
            let is_bad = matches!(&two, Err(ApiError::Input(bad)) if bad.field == "host");
            assert!(is_bad, "{pair:?}: {two:?}");
        }
        let authorize_target =
            |target: &str, host: &str| access.authorize(&local(), &parts("GET", target, &[("host", host)]));
        let other = authorize_target("http://evil.example/metrics", "localhost");
        assert_eq!(other, Err(ApiError::UnknownHost));
        assert_eq!(authorize_target("http://localhost:8082/metrics", "localhost"), Ok(()));
        assert_eq!(authorize_target("http://localhost/metrics", "evil.example"), Ok(()));
    }

    #[test]
    fn a_page_of_another_origin_cannot_change_anything() {
        let access = AdminAccess::new(&address("127.0.0.1:8082"), None, &[]).unwrap();
        let host = ("host", "localhost:8082");
        let from = |origin| check(&access, "POST", &[host, ("origin", origin)]);
        assert_eq!(from("http://localhost:8082"), Ok(()));
        assert_eq!(from("http://evil.example"), Err(ApiError::CrossOrigin));
        assert_eq!(from("null"), Err(ApiError::CrossOrigin));
        assert_eq!(check(&access, "POST", &[host]), Ok(()), "no browser, no origin");
    }

    #[test]
    fn other_than_on_loopback_a_token_is_required_and_checked() {
        let wide = address("0.0.0.0:8082");
        assert!(AdminAccess::new(&wide, None, &[]).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        let access = AdminAccess::new(&wide, Some(file.path()), &[]).unwrap();
        let shown = |text| check(&access, "GET", &[("host", "node7"), ("authorization", text)]);
        assert_eq!(shown("Bearer 0123456789abcdef"), Ok(()));
        assert_eq!(shown("bearer\t 0123456789abcdef"), Ok(()));
        assert_eq!(shown("Bearer 0123456789abcdeX"), Err(ApiError::WrongToken));
        assert_eq!(shown("0123456789abcdef"), Err(ApiError::WrongToken));
        assert_eq!(check(&access, "GET", &[("host", "node7")]), Err(ApiError::WrongToken));
        std::fs::write(file.path(), "short").unwrap();
        assert!(AdminAccess::new(&wide, Some(file.path()), &[]).is_err());
    }
}
