//! The trusted proxies, as networks. Their headers determine where a request came from.
//!
//! Invariant: only listed proxies are trusted, and a list parsed from text never trusts every address.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::ip;

/// The proxies whose headers determine where a request came from. None by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustedProxies {
    nets: Vec<IpNet>,
}

impl TrustedProxies {
    /// Trusts the proxies in these networks.
    pub fn new(nets: impl IntoIterator<Item = IpNet>) -> Self {
        TrustedProxies { nets: nets.into_iter().map(unmapped_net).collect() }
    }

    /// Parses networks (`10.0.0.0/8`) and single addresses (`10.1.2.3`). Returns all errors.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, Vec<TrustedProxyError>> {
        let (mut nets, mut errors) = (Vec::new(), Vec::new());
        for text in texts {
            match read_net(text.as_ref()) {
                Ok(net) => nets.push(net),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(TrustedProxies::new(nets)) } else { Err(errors) }
    }

    /// Whether `addr` is a trusted proxy. A v4-mapped address counts as its IPv4 address. A NAT64 address does not:
    /// it names a machine beyond a translator, not the proxy that the operator listed.
    pub fn trusts(&self, addr: IpAddr) -> bool {
        let addr = ip::unmapped(addr);
        self.nets.iter().any(|net| net.contains(&addr))
    }
}

/// An invalid entry of `trusted_proxies`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrustedProxyError {
    /// Neither a network nor an address.
    #[error("trusted proxy `{found}` is not a network; write it like 10.0.0.0/8 or 10.1.2.3")]
    NotANetwork {
        /// The text found, escaped.
        found: String,
    },
    /// Bits are set below the prefix: the network or the prefix is not the intended one.
    #[error("trusted proxy `{found}` has bits set below its prefix; write {meant} or correct it")]
    HostBits {
        /// The network found.
        found: IpNet,
        /// The network that contains it.
        meant: IpNet,
    },
    /// Every address: then any client could choose its own address.
    #[error("trusted proxy `{found}` is the whole internet, so any client could choose its address; list your proxies")]
    Everybody {
        /// The network found.
        found: IpNet,
    },
}

/// `::ffff:10.0.0.0/104` means 10.0.0.0/8: addresses are unwrapped before they are compared.
fn unmapped_net(net: IpNet) -> IpNet {
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.network().to_ipv4_mapped() {
            Some(v4) => Ipv4Net::new_assert(v4, v6.prefix_len() - 96).into(),
            None => net,
        },
        _ => net,
    }
}

fn read_net(text: &str) -> Result<IpNet, TrustedProxyError> {
    let text = text.trim();
    let net: IpNet = match text.parse() {
        Ok(net) => net,
        Err(_) => match text.parse::<IpAddr>() {
            Ok(addr) => addr.into(),
            Err(_) => {
                return Err(TrustedProxyError::NotANetwork { found: text.escape_default().to_string() });
            }
        },
    };
    match unmapped_net(net.trunc()) {
        meant if meant.prefix_len() == 0 => Err(TrustedProxyError::Everybody { found: net }),
        _ if net.trunc() != net => Err(TrustedProxyError::HostBits { found: net, meant: net.trunc() }),
        meant => Ok(meant),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_proxy_list_is_reported_at_once() {
        let result = TrustedProxies::parse(&["10.0.0.0/8", "proxy.local", "10.0.0.1/8", "0.0.0.0/0", "::ffff:0:0/96"]);
        let messages: Vec<_> = result.unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "trusted proxy `proxy.local` is not a network; write it like 10.0.0.0/8 or 10.1.2.3",
                "trusted proxy `10.0.0.1/8` has bits set below its prefix; write 10.0.0.0/8 or correct it",
                "trusted proxy `0.0.0.0/0` is the whole internet, so any client could choose its address; list your proxies",
                "trusted proxy `::ffff:0.0.0.0/96` is the whole internet, so any client could choose its address; list your proxies",
            ]
        );
    }

    #[test]
    fn a_mapped_network_is_the_v4_network() {
        let trusted = TrustedProxies::parse(&["::ffff:10.0.0.0/104"]).unwrap();
        assert_eq!(trusted, TrustedProxies::parse(&["10.0.0.0/8"]).unwrap());
        assert!(trusted.trusts("10.1.2.3".parse().unwrap()));
    }
}
