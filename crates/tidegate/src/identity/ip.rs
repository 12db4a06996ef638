//! One client, one address: parses the many notations of an address and maps them to one.
//!
//! Invariant: two addresses of the same client give equal [`ClientIp`]s, those of different clients differ. "The same
//! client" means: one IPv4 address however it is wrapped (v4-mapped or NAT64), or one IPv6 network of the configured
//! prefix, because a host is assigned a whole /64 and can use any address in it. Unwrapping comes before masking:
//! masked first, all of IPv4 would fall into one network and share one counter (CVE-2026-30827).
//!
//! Does not know where an address came from or whether it is trusted: see [`forwarded`](super::forwarded).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A client's address in canonical form. Only an [`IpNormalizer`] makes one; equal means the same client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientIp(IpAddr);

impl ClientIp {
    /// The address: IPv4 whole, IPv6 with all bits below the prefix zero.
    pub const fn addr(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maps addresses to clients, by the number of leading bits of an IPv6 address that identify one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpNormalizer {
    v6_prefix: u8,
}

impl Default for IpNormalizer {
    /// A /64: the least that one host or one home is assigned, and can use freely.
    fn default() -> Self {
        IpNormalizer { v6_prefix: 64 }
    }
}

impl IpNormalizer {
    /// A normalizer with an IPv6 prefix of 48 (a whole site) to 128 (every address by itself) bits. With a shorter
    /// one a site's traffic would cause denials for its neighbours.
    pub const fn new(v6_prefix: u8) -> Result<Self, Ipv6PrefixError> {
        match v6_prefix {
            48..=128 => Ok(IpNormalizer { v6_prefix }),
            found => Err(Ipv6PrefixError { found }),
        }
    }

    /// The number of leading bits of an IPv6 address that identify one client.
    pub const fn v6_prefix(self) -> u8 {
        self.v6_prefix
    }

    /// The client that `addr` belongs to.
    pub fn client(self, addr: IpAddr) -> ClientIp {
        ClientIp(match unmapped(addr) {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => match nat64(v6) {
                Some(v4) => IpAddr::V4(v4),
                None => IpAddr::V6(v6 & self.mask()),
            },
        })
    }

    /// The client that an address written as text belongs to; the notations are those of [`parse`].
    pub fn parse(self, text: &str) -> Result<ClientIp, IpParseError> {
        parse(text).map(|addr| self.client(addr))
    }

    fn mask(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::MAX << (128 - u32::from(self.v6_prefix)))
    }
}

/// An IPv6 prefix that does not identify clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("ipv6_prefix is {found}; write a number from 48 to 128 (64 suits most)")]
pub struct Ipv6PrefixError {
    /// The prefix length found.
    pub found: u8,
}

/// Text that is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IpParseError {
    /// Leading zeros: `010.0.0.1` is 10.0.0.1 to some parsers and, in octal, 8.0.0.1 to others. A limiter that
    /// picks one may count a client that the next hop knows by another address.
    #[error("`{found}` has a number with a leading zero, which some read as octal; write it without")]
    LeadingZero {
        /// The text found, escaped and shortened.
        found: String,
    },
    /// The text cannot be parsed as an address.
    #[error("`{found}` is not an IP address; write it like 203.0.113.9 or 2001:db8::1")]
    NotAnAddress {
        /// The text found, escaped and shortened.
        found: String,
    },
}

/// Parses one address: `203.0.113.9`, `203.0.113.9:80`, `2001:DB8::1`, `[2001:db8::1]:80`, `fe80::1%eth0`, with blanks
/// around it.
///
/// Port and zone are dropped: they distinguish connections and interfaces, not clients. IPv4 with leading zeros is
/// rejected. Without brackets the last group of an IPv6 address is never a port.
pub fn parse(text: &str) -> Result<IpAddr, IpParseError> {
    read(text).ok_or_else(|| {
        let found = shown(text);
        if has_leading_zero(text) { IpParseError::LeadingZero { found } } else { IpParseError::NotAnAddress { found } }
    })
}

/// [`parse`] for the request path, where the error is not needed.
pub(super) fn read(text: &str) -> Option<IpAddr> {
    // The usual notation, before ports and brackets are considered.
    if let Ok(plain) = text.parse() {
        return Some(IpAddr::V4(plain));
    }
    let text = text.trim_matches([' ', '\t']);
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let port_is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return if port_is_fine { v6(inside) } else { None };
    }
    match text.split_once(':') {
        None => text.parse().ok().map(IpAddr::V4),
        Some((v4, port)) if v4.contains('.') => {
            if is_port(port) {
                v4.parse().ok().map(IpAddr::V4)
            } else {
                None
            }
        }
        Some(_) => v6(text),
    }
}

/// `::ffff:203.0.113.9` is only another notation for 203.0.113.9, in which a dual-stack socket shows IPv4 peers.
pub(super) fn unmapped(addr: IpAddr) -> IpAddr {
    addr.to_canonical()
}

/// The IPv4 client behind a NAT64 gateway that uses the well-known prefix 64:ff9b::/96 (RFC 6052).
fn nat64(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        _ => None,
    }
}

fn v6(text: &str) -> Option<IpAddr> {
    let addr = match text.split_once('%') {
        None => text,
        Some((addr, zone)) if is_zone(zone) => addr,
        Some(_) => return None,
    };
    addr.parse().ok().map(IpAddr::V6)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn is_zone(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    !text.is_empty() && text.bytes().all(allowed)
}

fn has_leading_zero(text: &str) -> bool {
    let numbers = || text.trim().split(['.', ':']);
    let zeros = |n: &str| n.len() > 1 && n.starts_with('0') && n.bytes().all(|b| b.is_ascii_digit());
    text.contains('.') && numbers().any(zeros)
}

/// For an error message: without control characters and bidi tricks, and not the whole of a long header.
fn shown(text: &str) -> String {
    text.chars().take(48).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = match IpNormalizer::default().parse(text) {
            Ok(client) => client.to_string(),
            Err(IpParseError::LeadingZero { .. }) => "leading zero".to_owned(),
            Err(IpParseError::NotAnAddress { .. }) => "not an address".to_owned(),
        };
        assert_eq!(got, want, "from {text:?}");
    }

    #[test]
    fn every_notation_of_an_address_is_the_same_client() {
        for text in ["203.0.113.9", " 203.0.113.9\t", "203.0.113.9:80", "[::ffff:203.0.113.9]:443"] {
            check(text, "203.0.113.9");
        }
        for text in ["::ffff:203.0.113.9", "::FFFF:CB00:7109", "64:ff9b::203.0.113.9"] {
            check(text, "203.0.113.9");
        }
        for text in ["2001:db8:0:7::1", "2001:0DB8:0000:0007:ffff::", "[2001:DB8:0:7::2]:8080"] {
            check(text, "2001:db8:0:7::");
        }
        for text in ["fe80::1", "fe80::1%eth0", "[fe80::2%25eth0]:80"] {
            check(text, "fe80::");
        }
    }

    #[test]
    fn leading_zeros_are_rejected_because_parsers_disagree_on_octal() {
        for text in ["010.0.0.1", "10.0.0.01", "00.0.0.0", "::ffff:010.0.0.1", "10.0.0.010:80"] {
            check(text, "leading zero");
        }
        check("0.0.0.0", "0.0.0.0");
    }

    #[test]
    fn text_that_is_not_exactly_an_address_is_rejected() {
        for text in [
            "",
            " ",
            "unknown",
            "_hidden",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.256",
            "0x7f.0.0.1",
            "2130706433",
            "1.2.3.4:",
            "1.2.3.4:65536",
            "1.2.3.4:+80",
            "1.2.3.4:80:80",
            "1.2.3.4%eth0",
            "1.2.3.4/24",
            "[1.2.3.4]",
            "[::1",
            "::1]",
            "[]",
            "[::1]80",
            "[::1]:",
            ":::",
            "::1%",
            "::1%a b",
            "１.2.3.4",
            "1.2.3.4\0",
            "1.2.3.4\r\n",
            "2001:db8:::1",
            "[[::1]]",
        ] {
            check(text, "not an address");
        }
    }

    #[test]
    fn a_message_shows_the_text_without_its_control_characters() {
        let error = parse("\u{1b}[31m\u{202e}evil").unwrap_err().to_string();
        let want = r"`\u{1b}[31m\u{202e}evil` is not an IP address; write it like 203.0.113.9 or 2001:db8::1";
        assert_eq!(error, want);
    }

    // CVE-2026-30827: masking before unwrapping put every IPv4 client into ::/64.
    #[test]
    fn v4_clients_of_a_dual_stack_socket_keep_their_own_counters() {
        check("::ffff:198.51.100.1", "198.51.100.1");
        check("::ffff:198.51.100.2", "198.51.100.2");
    }

    #[test]
    fn prefixes_from_48_to_128_are_accepted_and_others_rejected() {
        let addr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        let masked = |prefix| IpNormalizer::new(prefix).unwrap().client(addr).to_string();
        assert_eq!(masked(48), "2001:db8:1::");
        assert_eq!(masked(56), "2001:db8:1::");
        assert_eq!(masked(64), "2001:db8:1:2::");
        assert_eq!(masked(128), "2001:db8:1:2:3:4:5:6");
        for found in [0, 47, 129, 255] {
            assert_eq!(IpNormalizer::new(found), Err(Ipv6PrefixError { found }));
        }
    }

    /// The owner of an address, computed independently of the code above: by its text or bits.
    fn owner(addr: IpAddr, prefix: u8) -> (u8, u128) {
        match addr {
            IpAddr::V4(v4) => (4, u128::from(v4.to_bits())),
            IpAddr::V6(v6) => {
                let bits = v6.to_bits();
                match bits >> 32 {
                    0xffff | 0x0064_ff9b_0000_0000_0000_0000 => (4, bits & 0xffff_ffff),
                    _ => (6, bits.checked_shr(128 - u32::from(prefix)).unwrap_or(bits)),
                }
            }
        }
    }

    /// Pairs near each other, so that "same" and "different" both come up often.
    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (any::<u32>(), 0u32..4).prop_map(|(bits, low)| (bits & 0x0100_0000) | low);
        let v6 = (0u32..96, 0u128..4).prop_map(|(shift, low)| (0x2001_0db8 << 96) | (low << shift));
        prop_oneof![
            v4.clone().prop_map(|b| IpAddr::V4(Ipv4Addr::from_bits(b))),
            v4.clone().prop_map(|b| IpAddr::V6(Ipv4Addr::from_bits(b).to_ipv6_mapped())),
            v4.prop_map(|b| IpAddr::V6(Ipv6Addr::from_bits((0x0064_ff9b << 96) | u128::from(b)))),
            v6.prop_map(|b| IpAddr::V6(Ipv6Addr::from_bits(b))),
            any::<u128>().prop_map(|b| IpAddr::V6(Ipv6Addr::from_bits(b))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn same_client_if_and_only_if_same_key(a in address(), b in address(), prefix in 48u8..=128) {
            let normalizer = IpNormalizer::new(prefix).unwrap();
            prop_assert_eq!(normalizer.client(a) == normalizer.client(b), owner(a, prefix) == owner(b, prefix));
        }

        #[test]
        fn text_and_back_is_the_same_address(addr in address(), port: u16) {
            prop_assert_eq!(parse(&addr.to_string()).unwrap(), addr);
            prop_assert_eq!(parse(&std::net::SocketAddr::new(addr, port).to_string()).unwrap(), addr);
        }
    }
}
