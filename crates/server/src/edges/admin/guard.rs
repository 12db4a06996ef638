//! Who may use the admin listener.

use http::request::Parts;
use http::uri::Authority;
use http::{Method, header};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::path::Path;
use subtle::ConstantTimeEq;

use crate::address::{Address, Place};
use crate::edges::http::error::Refusal;
use crate::edges::http::wire::BadInput;

/// Tokens shorter than this can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// What a caller must show.
#[derive(Clone)]
pub(crate) struct Guard {
    token: Option<Token>,
    hosts: Vec<String>,
}

/// A token, kept as its digest.
#[derive(Clone)]
struct Token([u8; 32]);

/// Why the admin listener cannot be opened as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadGuard {
    /// Anyone on the network could use it.
    #[error(
        "--admin {place} can be reached from other machines; set --admin-token-file, or listen on loopback"
    )]
    Open { place: String },
    /// The file with the token cannot be used.
    #[error("{file}: {reason}")]
    TokenFile { file: String, reason: String },
}

impl Guard {
    /// The guard for a listener at `address`, before it opens.
    pub(crate) fn new(
        address: &Address,
        token_file: Option<&Path>,
        hosts: &[String],
    ) -> Result<Self, BadGuard> {
        let token = token_file.map(read_token).transpose()?;
        if token.is_none() && !address.is_local() {
            return Err(BadGuard::Open {
                place: address.to_string(),
            });
        }
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(Guard { token, hosts })
    }

    /// Whether this request may be answered.
    pub(crate) fn admit(&self, peer: &Place, parts: &Parts) -> Result<(), Refusal> {
        let authority = authority_of(parts)?;
        let host = authority.as_deref().map(host_of);
        // A page cannot know the token, so with one only configured names narrow the hosts further.
        let hosts_matter =
            matches!(peer, Place::Tcp(_)) && (self.token.is_none() || !self.hosts.is_empty());
        if hosts_matter && !host.is_some_and(|host| self.is_ours(host)) {
            return Err(Refusal::Host);
        }
        let reading = matches!(parts.method, Method::GET | Method::HEAD);
        if let Some(origin) = parts.headers.get(header::ORIGIN)
            && !reading
        {
            let origin = origin.to_str().unwrap_or_default();
            let same = origin
                .split_once("://")
                .map(|(_, authority)| authority.to_ascii_lowercase());
            if same.is_none() || same != authority {
                return Err(Refusal::Origin);
            }
        }
        match &self.token {
            Some(token) if !token.is_shown_by(parts) => Err(Refusal::Token),
            _ => Ok(()),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let address = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        host == "localhost"
            || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
            || self.hosts.iter().any(|known| known == host)
    }
}

impl Token {
    fn is_shown_by(&self, parts: &Parts) -> bool {
        let shown = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let Some((scheme, token)) = shown.and_then(|value| value.split_once([' ', '\t'])) else {
            return false;
        };
        let digest: [u8; 32] = Sha256::digest(token.trim()).into();
        scheme.eq_ignore_ascii_case("bearer") && bool::from(digest.ct_eq(&self.0))
    }
}

fn read_token(file: &Path) -> Result<Token, BadGuard> {
    let fault = |reason: String| BadGuard::TokenFile {
        file: file.display().to_string(),
        reason,
    };
    let text = std::fs::read_to_string(file).map_err(|error| fault(error.to_string()))?;
    let token = text.trim();
    if token.len() < SHORTEST_TOKEN {
        return Err(fault(format!(
            "a token has {SHORTEST_TOKEN} characters or more"
        )));
    }
    Ok(Token(Sha256::digest(token).into()))
}

/// The authority that the request is addressed to: `host:port`, in lower case. That of the target counts before that
/// of the header, as in RFC 9112, 3.2.2.
///
/// # Errors
/// Two `Host` lines: another reader of the request may take the other one.
fn authority_of(parts: &Parts) -> Result<Option<String>, Refusal> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(BadInput {
            field: "host".to_owned(),
            reason: "more than one line, send one".to_owned(),
        }
        .into());
    }
    let target = parts.uri.authority().map(Authority::as_str);
    let authority = target.or_else(|| line.and_then(|line| line.to_str().ok()));
    Ok(authority.map(str::to_ascii_lowercase))
}

/// The host alone.
fn host_of(authority: &str) -> &str {
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

    fn local() -> Place {
        Place::Tcp("127.0.0.1:8082".parse().unwrap())
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn check(guard: &Guard, method: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        guard.admit(&local(), &parts(method, "/metrics", headers))
    }

    #[test]
    fn a_name_that_an_attacker_points_at_loopback_is_refused() {
        let guard = Guard::new(
            &address("127.0.0.1:8082"),
            None,
            &["ops.example".to_owned()],
        )
        .unwrap();
        for host in [
            "localhost:8082",
            "127.0.0.1",
            "[::1]:8082",
            "ops.example:8082",
            "LOCALHOST",
        ] {
            assert_eq!(check(&guard, "GET", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example:8082",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "",
        ] {
            assert_eq!(
                check(&guard, "GET", &[("host", host)]),
                Err(Refusal::Host),
                "{host}"
            );
        }
        assert_eq!(check(&guard, "GET", &[]), Err(Refusal::Host));
    }

    /// The first line alone was looked at, and the authority of the target not at all where there was a line.
    #[test]
    fn a_request_with_two_hosts_is_judged_by_none_that_an_attacker_hides() {
        let guard = Guard::new(&address("127.0.0.1:8082"), None, &[]).unwrap();
        for pair in [["localhost", "evil.example"], ["evil.example", "localhost"]] {
            let two = check(&guard, "GET", &pair.map(|host| ("host", host)));
            let is_bad = matches!(&two, Err(Refusal::Bad(bad)) if bad.field == "host");
            assert!(is_bad, "{pair:?}: {two:?}");
        }
        let judged = |target: &str, host: &str| {
            guard.admit(&local(), &parts("GET", target, &[("host", host)]))
        };
        let other = judged("http://evil.example/metrics", "localhost");
        assert_eq!(other, Err(Refusal::Host));
        assert_eq!(judged("http://localhost:8082/metrics", "localhost"), Ok(()));
        assert_eq!(judged("http://localhost/metrics", "evil.example"), Ok(()));
    }

    #[test]
    fn a_page_of_another_origin_cannot_change_anything() {
        let guard = Guard::new(&address("127.0.0.1:8082"), None, &[]).unwrap();
        let host = ("host", "localhost:8082");
        let from = |origin| check(&guard, "POST", &[host, ("origin", origin)]);
        assert_eq!(from("http://localhost:8082"), Ok(()));
        assert_eq!(from("http://evil.example"), Err(Refusal::Origin));
        assert_eq!(from("null"), Err(Refusal::Origin));
        assert_eq!(
            check(&guard, "POST", &[host]),
            Ok(()),
            "no browser, no origin"
        );
    }

    #[test]
    fn beyond_loopback_a_token_is_needed_and_checked() {
        let wide = address("0.0.0.0:8082");
        assert!(Guard::new(&wide, None, &[]).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        let guard = Guard::new(&wide, Some(file.path()), &[]).unwrap();
        let shown = |text| check(&guard, "GET", &[("host", "node7"), ("authorization", text)]);
        assert_eq!(shown("Bearer 0123456789abcdef"), Ok(()));
        assert_eq!(shown("bearer\t 0123456789abcdef"), Ok(()));
        assert_eq!(shown("Bearer 0123456789abcdeX"), Err(Refusal::Token));
        assert_eq!(shown("0123456789abcdef"), Err(Refusal::Token));
        assert_eq!(
            check(&guard, "GET", &[("host", "node7")]),
            Err(Refusal::Token)
        );
        std::fs::write(file.path(), "short").unwrap();
        assert!(Guard::new(&wide, Some(file.path()), &[]).is_err());
    }
}
