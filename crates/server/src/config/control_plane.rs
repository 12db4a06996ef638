//! The address of a control plane, and how to connect to it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde::Deserialize;

/// The default of gRPC.
const DEFAULT_MESSAGE_BYTES: usize = 4 << 20;
/// The same maximum as for files.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A control plane, and how to connect to it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ControlPlane {
    /// `HOST:PORT`.
    pub(crate) authority: String,
    pub(crate) node: XdsNodeInfo,
    /// Sent with the stream. Values may be secrets.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) tls: Option<XdsTlsFiles>,
    pub(crate) backoff: Backoff,
    pub(crate) max_message_bytes: usize,
}

/// The node identity that is sent to the control plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct XdsNodeInfo {
    pub(crate) id: String,
    pub(crate) metadata: Vec<(String, String)>,
}

/// The TLS files of the connection to a control plane.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct XdsTlsFiles {
    /// The authorities to trust. Without them, those of the system.
    pub(crate) authorities: Option<PathBuf>,
    /// The client certificate, and its key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    /// The expected name of the server, if it is not the host.
    pub(crate) name: Option<String>,
}

/// A text that is not the address of a control plane.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a control plane; write xds://HOST:PORT?node=ID, and xdss for TLS with ca=FILE, cert=FILE, \
     key=FILE or name=NAME if they are needed"
)]
pub(crate) struct ControlPlaneError(String);

impl ControlPlane {
    /// The control plane at `HOST:PORT`, with default options.
    pub(crate) fn at(authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
        let fits = !host.is_empty()
            && host.chars().all(plain)
            && (bracketed || !host.contains([':', '[', ']']))
            && port.parse::<u16>().is_ok_and(|port| port > 0);
        fits.then(|| ControlPlane {
            authority: authority.to_owned(),
            node: XdsNodeInfo { id: "default".to_owned(), metadata: Vec::new() },
            headers: Vec::new(),
            tls: None,
            backoff: Backoff::default(),
            max_message_bytes: DEFAULT_MESSAGE_BYTES,
        })
    }

    /// Sets the maximum size of messages.
    pub(crate) fn set_max_message_bytes(&mut self, bytes: usize) {
        self.max_message_bytes = bytes.min(MAX_MESSAGE_BYTES);
    }

    /// Its host, without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for ControlPlane {
    type Err = ControlPlaneError;

    fn from_str(text: &str) -> Result<Self, ControlPlaneError> {
        let read = || {
            let (scheme, rest) = text.split_once("://")?;
            let (authority, options) = rest.split_once('?').unwrap_or((rest, ""));
            let mut plane = ControlPlane::at(authority.trim_end_matches('/'))?;
            let mut tls = match scheme {
                "xds" => None,
                "xdss" => Some(XdsTlsFiles::default()),
                _ => return None,
            };
            let (mut certificate, mut key) = (None, None);
            for option in options.split('&').filter(|option| !option.is_empty()) {
                let (name, value) = option.split_once('=')?;
                match (name, &mut tls) {
                    ("node", _) => plane.node.id = value.to_owned(),
                    ("ca", Some(tls)) => tls.authorities = Some(value.into()),
                    ("name", Some(tls)) => tls.name = Some(value.to_owned()),
                    ("cert", Some(_)) => certificate = Some(PathBuf::from(value)),
                    ("key", Some(_)) => key = Some(PathBuf::from(value)),
                    _ => return None,
                }
            }
            match (&mut tls, certificate, key) {
                (_, None, None) => {}
                (Some(tls), Some(certificate), Some(key)) => tls.client_certificate = Some((certificate, key)),
                _ => return None,
            }
            plane.tls = tls;
            Some(plane)
        };
        read().ok_or_else(|| ControlPlaneError(text.escape_default().to_string()))
    }
}

impl TryFrom<String> for ControlPlane {
    type Error = ControlPlaneError;

    fn try_from(text: String) -> Result<Self, ControlPlaneError> {
        text.parse()
    }
}

/// Exponential back-off before the next connection. The waits have jitter, so that a fleet that lost its control plane
/// does not reconnect all at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

/// Short enough for a restart, long enough for a long outage.
impl Default for Backoff {
    fn default() -> Self {
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

/// Minimum wait, whatever is configured.
const MIN_WAIT: Duration = Duration::from_millis(10);

impl Backoff {
    /// The wait after `failures` failures in a row: between half of it and the whole, by a `jitter` between 0 and 1.
    pub(crate) fn wait(self, failures: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(20));
        let whole = doubled.min(self.max).max(MIN_WAIT);
        whole.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_is_parsed_from_its_address() {
        let plane: ControlPlane = "xds://plane:18000?node=gate-1".parse().unwrap();
        assert_eq!((plane.host(), plane.node.id.as_str()), ("plane", "gate-1"));
        assert_eq!(plane.tls, None);
        let plane: ControlPlane = "xdss://[::1]:1?ca=/ca&cert=/c&key=/k&name=n".parse().unwrap();
        assert_eq!((plane.host(), plane.node.id.as_str()), ("::1", "default"));
        let tls = XdsTlsFiles {
            authorities: Some("/ca".into()),
            client_certificate: Some(("/c".into(), "/k".into())),
            name: Some("n".to_owned()),
        };
        assert_eq!(plane.tls, Some(tls));
    }

    #[test]
    fn other_texts_are_rejected_with_the_expected_form() {
        for text in [
            "",
            "plane:18000",
            "http://plane:18000",
            "xds://plane",
            "xds://:18000",
            "xds://plane:0",
            "xds://plane:18000?nod=x",
            "xds://plane:18000?ca=/x",
            "xdss://plane:18000?cert=/x",
            "xds://u@plane:18000",
        ] {
            let error = text.parse::<ControlPlane>().unwrap_err().to_string();
            assert!(error.contains("write xds://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn waits_double_up_to_the_maximum_with_jitter_in_the_upper_half() {
        let backoff = Backoff { first: Duration::from_secs(10), max: Duration::from_secs(60) };
        let secs = |failures, chance| backoff.wait(failures, chance).as_secs();
        assert_eq!([0, 1, 2, 3, 99].map(|n| secs(n, 1.0)), [10, 20, 40, 60, 60]);
        assert_eq!([0, 3].map(|n| secs(n, 0.0)), [5, 30]);
        let none = Backoff { first: Duration::ZERO, max: Duration::ZERO };
        assert!(none.wait(0, 0.0) > Duration::ZERO, "never zero");
    }
}
