//! The address of a listener: `host:port`, `unix:path` or `off`.
//!
//! A port alone means loopback. `:port` means every IPv4 address of this machine.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum ListenAddress {
    /// A host name or address, and a port. Port 0 picks a free one.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
    /// No listener.
    Off,
}

/// The text is not a listen address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not an address; write host:port, a port, :port, unix:path or off")]
pub(crate) struct ListenAddressError {
    found: String,
}

impl ListenAddress {
    /// Whether only this machine can reach the address. A name is resolved now; a name that does not resolve is not
    /// local.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            ListenAddress::Off | ListenAddress::Unix(_) => true,
            ListenAddress::Tcp(text) => text
                .to_socket_addrs()
                .is_ok_and(|mut addresses| addresses.all(|address| address.ip().to_canonical().is_loopback())),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let bad = || ListenAddressError { found: text.escape_default().to_string() };
        if text == "off" {
            return Ok(ListenAddress::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(ListenAddress::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || port.parse::<u16>().is_err() || (host.contains(':') && !bracketed) {
            return Err(bad());
        }
        match host {
            "" => Ok(ListenAddress::Tcp(format!("0.0.0.0:{port}"))),
            host => Ok(ListenAddress::Tcp(format!("{host}:{port}"))),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = ListenAddressError;

    fn try_from(text: String) -> Result<Self, ListenAddressError> {
        text.parse()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(text) => f.write_str(text),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Off => f.write_str("off"),
        }
    }
}

/// The address that a listener is bound to, or that a connection came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum EndpointAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A socket in the file system, on the same machine.
    Unix(PathBuf),
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointAddress::Tcp(addr) => addr.fmt(f),
            EndpointAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_is_written() {
        for text in ["127.0.0.1:8080", "[::1]:0", "localhost:80", "unix:/run/tg.sock", "off"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_port_alone_means_loopback_and_a_colon_means_every_address() {
        let address = |text: &str| text.parse::<ListenAddress>().unwrap();
        assert_eq!(address("8080").to_string(), "127.0.0.1:8080");
        assert_eq!(address(":8080").to_string(), "0.0.0.0:8080");
        assert!(address("8080").is_local() && !address(":8080").is_local());
    }

    #[test]
    fn an_invalid_address_is_rejected_with_what_to_write() {
        for text in ["", ":", "99999", "+8080", ":http", "localhost", "localhost:99999", "::1:80", "unix:", "on"] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.ends_with("write host:port, a port, :port, unix:path or off"), "{error}");
        }
    }

    #[test]
    fn a_mapped_loopback_is_local() {
        let local = |text: &str| text.parse::<ListenAddress>().unwrap().is_local();
        assert!(local("[::ffff:127.0.0.1]:1") && local("127.9.9.9:1") && local("unix:/x"));
        assert!(!local("192.0.2.1:1") && !local("0.0.0.0:1") && !local("[::]:1"));
    }
}
