//! Whose request a proxy passed on: walks `X-Forwarded-For` or `Forwarded` back to the client.
//!
//! The walk starts at the socket peer, the only address nobody can choose. While the address in
//! hand is a trusted proxy, its word is taken for the hop before it: one entry to the left, from
//! the right end of all header lines joined in order. The first address that is not trusted is
//! the client. An entry that cannot be read stops the walk at the last address that could.
//!
//! Kept true: what stands left of the first untrusted address is never looked at, so a client
//! cannot name its own address by sending the header itself. Trust nobody (the default) and the
//! client is the peer. Only one of the two headers is ever read, the one the operator names: a
//! proxy that appends to one passes the other through as the client wrote it.
//!
//! Does not mask or key addresses: see [`Canon`](super::Canon).

use std::net::IpAddr;

use ipnet::IpNet;

use super::ip;

/// More proxies in a row than anyone runs. Bounds the work that a long header can ask for.
const MAX_HOPS: usize = 32;

/// The proxies whose word is taken for where a request came from. Nobody, unless told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trusted {
    nets: Vec<IpNet>,
}

impl Trusted {
    /// Trusts the proxies in these networks.
    pub fn new(nets: impl IntoIterator<Item = IpNet>) -> Self {
        Trusted {
            nets: nets.into_iter().map(unmapped_net).collect(),
        }
    }

    /// Reads networks (`10.0.0.0/8`) and single addresses (`10.1.2.3`); gives every fault.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, Vec<BadProxy>> {
        let (mut nets, mut faults) = (Vec::new(), Vec::new());
        for text in texts {
            match read_net(text.as_ref()) {
                Ok(net) => nets.push(net),
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            Ok(Trusted::new(nets))
        } else {
            Err(faults)
        }
    }

    /// Whether `addr` is a trusted proxy. A v4-mapped address is its IPv4 address; a NAT64 one is
    /// not: it names a machine beyond a translator, not the proxy the operator listed.
    pub fn trusts(&self, addr: IpAddr) -> bool {
        let addr = ip::unmapped(addr);
        self.nets.iter().any(|net| net.contains(&addr))
    }
}

/// An entry of `trusted_proxies` that is not a network.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadProxy {
    /// Neither a network nor an address.
    #[error("trusted proxy `{found}` is not a network; write it like 10.0.0.0/8 or 10.1.2.3")]
    NotANetwork {
        /// What was written, escaped.
        found: String,
    },
    /// Bits set below the prefix: the network or the prefix is not the one that was meant.
    #[error("trusted proxy `{found}` has bits set below its prefix; write {meant} or correct it")]
    HostBits {
        /// What was written.
        found: IpNet,
        /// The network it lies in.
        meant: IpNet,
    },
    /// Everybody: then any client chooses its own address.
    #[error(
        "trusted proxy `{found}` is the whole internet, so any client could choose its address; list your proxies"
    )]
    Everybody {
        /// What was written.
        found: IpNet,
    },
}

/// Which header the trusted proxies write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Chain {
    /// `X-Forwarded-For: client, proxy1, proxy2`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client;proto=https, for=proxy1` (RFC 7239)
    Forwarded,
}

impl Chain {
    /// The name of the header, in lower case.
    pub const fn header(self) -> &'static str {
        match self {
            Chain::XForwardedFor => "x-forwarded-for",
            Chain::Forwarded => "forwarded",
        }
    }
}

/// Where a walk ended, and why there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The address to hold responsible.
    pub client: IpAddr,
    /// How many trusted proxies vouched for it; 0 if it is the peer itself.
    pub hops: usize,
    /// Why the walk went no further.
    pub end: End,
}

/// Why a walk went no further left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The client is not a trusted proxy: the usual case.
    Untrusted,
    /// Every entry was a trusted proxy: the left-most one sent the request itself.
    Exhausted,
    /// The entry before the client cannot be read, is empty, or hides its address.
    Malformed,
    /// More trusted hops than anyone runs.
    TooLong,
}

/// Walks from the socket `peer` to the client. `lines` are the values of every line of the
/// `chain` header, in the order received; what they hold is only read if `peer` is trusted.
pub fn client<'a, L>(peer: IpAddr, chain: Chain, lines: L, trusted: &Trusted) -> Walk
where
    L: IntoIterator<Item = &'a [u8]>,
    L::IntoIter: DoubleEndedIterator,
{
    let lines = lines.into_iter().rev();
    match chain {
        Chain::XForwardedFor => walk(peer, lines.flat_map(comma_separated).map(address), trusted),
        Chain::Forwarded => walk(peer, lines.flat_map(elements).map(for_address), trusted),
    }
}

/// The rule itself: `before` gives the earlier hops, nearest first, `None` where unreadable.
fn walk(peer: IpAddr, mut before: impl Iterator<Item = Option<IpAddr>>, trusted: &Trusted) -> Walk {
    let mut at = Walk {
        client: ip::unmapped(peer),
        hops: 0,
        end: End::Untrusted,
    };
    while trusted.trusts(at.client) {
        let end = match before.next() {
            Some(Some(_)) if at.hops == MAX_HOPS => End::TooLong,
            Some(Some(addr)) => {
                at = Walk {
                    client: ip::unmapped(addr),
                    hops: at.hops + 1,
                    end: End::Untrusted,
                };
                continue;
            }
            Some(None) => End::Malformed,
            None => End::Exhausted,
        };
        return Walk { end, ..at };
    }
    at
}

/// Entries of one `X-Forwarded-For` line, right to left. An empty entry counts: whoever wrote it
/// vouched for nothing, so what is left of it must not be reached.
fn comma_separated(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&b| b == b',')
}

fn address(entry: &[u8]) -> Option<IpAddr> {
    ip::read(str::from_utf8(entry).ok()?)
}

/// Elements of one `Forwarded` line, right to left, split at commas outside quotes.
///
/// Read from the right, what trusted proxies appended is well formed whatever a client put before
/// it; from the left, one stray quote sent by a client would swallow their entries.
fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let (before, element) = match last_bare_comma(line) {
            Some(at) => (Some(&line[..at]), &line[at + 1..]),
            None => (None, line),
        };
        rest = before;
        Some(element)
    })
}

fn last_bare_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    (0..line.len()).rev().find(|&at| {
        if line[at] == b'"' && !is_escaped(&line[..at]) {
            quoted = !quoted;
        }
        line[at] == b',' && !quoted
    })
}

/// Whether what follows `before` is escaped: an odd run of backslashes ends it.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
}

/// The `for` address of one element. Exactly one `for`; the other parameters only have to be
/// well formed. `unknown`, `_hidden` and escapes inside quotes are no address.
fn for_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in pairs(str::from_utf8(element).ok()?) {
        let (name, value) = pair?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    ip::read(without_hidden_port(found?))
}

/// `name=value` pairs of an element; `None` for one that is malformed.
fn pairs(element: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    let (mut quoted, mut escaped) = (false, false);
    let at_semicolon = move |c: char| {
        let was_escaped = std::mem::replace(&mut escaped, false);
        match c {
            _ if was_escaped => false,
            '\\' => {
                escaped = quoted;
                false
            }
            '"' => {
                quoted = !quoted;
                false
            }
            c => c == ';' && !quoted,
        }
    };
    element
        .split(at_semicolon)
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(pair)
}

fn pair(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let value = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None if value.bytes().all(is_loose_token) => value,
        None => return None,
    };
    let is_name = !name.is_empty() && name.bytes().all(is_token);
    is_name.then_some((name, value))
}

/// RFC 9110 `tchar`.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// A token, or what proxies write without the quotes that IPv6 addresses and ports should have.
fn is_loose_token(b: u8) -> bool {
    is_token(b) || b"[]:/".contains(&b)
}

/// RFC 7239 lets a proxy hide the port as `_name`; the address before it still counts.
fn without_hidden_port(node: &str) -> &str {
    match node.rsplit_once(":_") {
        Some((address, port)) if !port.is_empty() && port.bytes().all(is_token) => address,
        _ => node,
    }
}

/// `::ffff:10.0.0.0/104` means 10.0.0.0/8: addresses are unwrapped before they are compared.
fn unmapped_net(net: IpNet) -> IpNet {
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.network().to_ipv4_mapped() {
            Some(v4) => ipnet::Ipv4Net::new_assert(v4, v6.prefix_len() - 96).into(),
            None => net,
        },
        _ => net,
    }
}

fn read_net(text: &str) -> Result<IpNet, BadProxy> {
    let text = text.trim();
    let net: IpNet = match text.parse() {
        Ok(net) => net,
        Err(_) => match text.parse::<IpAddr>() {
            Ok(addr) => addr.into(),
            Err(_) => {
                return Err(BadProxy::NotANetwork {
                    found: text.escape_default().to_string(),
                });
            }
        },
    };
    match unmapped_net(net.trunc()) {
        meant if meant.prefix_len() == 0 => Err(BadProxy::Everybody { found: net }),
        _ if net.trunc() != net => Err(BadProxy::HostBits {
            found: net,
            meant: net.trunc(),
        }),
        meant => Ok(meant),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXIES: [&str; 3] = ["10.0.0.0/8", "2001:db8:face::/48", "192.0.2.1"];

    /// Walks `lines`, one header line each, and says `client/hops end`.
    #[track_caller]
    fn check(chain: Chain, peer: &str, lines: &[&str], want: &str) {
        let trusted = Trusted::parse(&PROXIES).unwrap();
        let got = client(
            peer.parse().unwrap(),
            chain,
            lines.iter().map(|l| l.as_bytes()),
            &trusted,
        );
        let got = format!("{}/{} {:?}", got.client, got.hops, got.end);
        assert_eq!(got, want, "{chain:?} from {peer}: {lines:?}");
    }

    #[track_caller]
    fn xff(peer: &str, lines: &[&str], want: &str) {
        check(Chain::XForwardedFor, peer, lines, want);
    }

    #[track_caller]
    fn forwarded(peer: &str, lines: &[&str], want: &str) {
        check(Chain::Forwarded, peer, lines, want);
    }

    #[test]
    fn by_default_nobody_is_trusted_and_the_peer_is_the_client() {
        let peer = "10.0.0.1".parse().unwrap();
        let walked = client(
            peer,
            Chain::default(),
            [&b"203.0.113.9"[..]],
            &Trusted::default(),
        );
        assert_eq!(
            walked,
            Walk {
                client: peer,
                hops: 0,
                end: End::Untrusted
            }
        );
    }

    #[test]
    fn an_untrusted_peer_cannot_name_itself() {
        xff("203.0.113.9", &["198.51.100.1"], "203.0.113.9/0 Untrusted");
        forwarded(
            "203.0.113.9",
            &["for=198.51.100.1"],
            "203.0.113.9/0 Untrusted",
        );
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        xff("10.0.0.1", &["203.0.113.9"], "203.0.113.9/1 Untrusted");
        xff(
            "10.0.0.1",
            &["1.1.1.1, 203.0.113.9, 10.0.0.2"],
            "203.0.113.9/2 Untrusted",
        );
        xff(
            "10.0.0.1",
            &["10.9.9.9, 203.0.113.9, 192.0.2.1,10.0.0.2"],
            "203.0.113.9/3 Untrusted",
        );
        xff(
            "2001:db8:face::1",
            &["2001:db8::9"],
            "2001:db8::9/1 Untrusted",
        );
    }

    #[test]
    fn header_lines_are_one_list_in_the_order_received() {
        xff(
            "10.0.0.1",
            &["1.1.1.1", "203.0.113.9", "10.0.0.2, 10.0.0.3"],
            "203.0.113.9/3 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["for=1.1.1.1", "for=203.0.113.9, for=10.0.0.2"],
            "203.0.113.9/2 Untrusted",
        );
    }

    #[test]
    fn when_all_are_trusted_the_left_most_proxy_is_the_client() {
        xff("10.0.0.1", &[], "10.0.0.1/0 Exhausted");
        xff("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3/2 Exhausted");
    }

    #[test]
    fn an_unreadable_entry_stops_at_the_last_good_one() {
        xff(
            "10.0.0.1",
            &["203.0.113.9, garbage"],
            "10.0.0.1/0 Malformed",
        );
        xff(
            "10.0.0.1",
            &["203.0.113.9, unknown, 10.0.0.2"],
            "10.0.0.2/1 Malformed",
        );
        xff(
            "10.0.0.1",
            &["203.0.113.9, , 10.0.0.2"],
            "10.0.0.2/1 Malformed",
        );
        xff("10.0.0.1", &["203.0.113.9,"], "10.0.0.1/0 Malformed");
        xff("10.0.0.1", &["203.0.113.9", ""], "10.0.0.1/0 Malformed");
        xff("10.0.0.1", &["010.0.0.1"], "10.0.0.1/0 Malformed");
        forwarded(
            "10.0.0.1",
            &["for=203.0.113.9, for=_hidden"],
            "10.0.0.1/0 Malformed",
        );
        forwarded(
            "10.0.0.1",
            &["for=203.0.113.9, for=unknown, for=10.0.0.2"],
            "10.0.0.2/1 Malformed",
        );
        forwarded(
            "10.0.0.1",
            &["for=203.0.113.9, proto=https"],
            "10.0.0.1/0 Malformed",
        );
        forwarded(
            "10.0.0.1",
            &["for=203.0.113.9;for=203.0.113.8"],
            "10.0.0.1/0 Malformed",
        );
        forwarded("10.0.0.1", &["for=203.0.113.9;=x"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=\"203.0.113.9"], "10.0.0.1/0 Malformed");
    }

    #[test]
    fn what_lies_left_of_the_client_is_never_read() {
        xff(
            "10.0.0.1",
            &["\u{0}garbage\", , 203.0.113.9"],
            "203.0.113.9/1 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["for=\"x\\, for=203.0.113.9"],
            "203.0.113.9/1 Untrusted",
        );
    }

    // Split from the left, the client's lone quote would swallow the entry its proxy appended.
    #[test]
    fn a_quote_sent_by_the_client_does_not_hide_what_proxies_appended() {
        forwarded(
            "10.0.0.1",
            &["for=\"1.1.1.1, for=203.0.113.9"],
            "203.0.113.9/1 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["\", for=\"[2001:db8::9]:80\""],
            "2001:db8::9/1 Untrusted",
        );
    }

    #[test]
    fn ports_brackets_case_and_wrapping_do_not_matter() {
        xff(
            "::ffff:10.0.0.1",
            &["203.0.113.9:1234, [::ffff:10.0.0.2]:80"],
            "203.0.113.9/2 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["For=\"[2001:DB8::9]:4711\""],
            "2001:db8::9/1 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["for=\"203.0.113.9:_gazonk\""],
            "203.0.113.9/1 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["proto=http ; FOR=203.0.113.9; by=10.0.0.1;"],
            "203.0.113.9/1 Untrusted",
        );
        forwarded(
            "10.0.0.1",
            &["for=203.0.113.9;ext=\"a,b;\\\"c\""],
            "203.0.113.9/1 Untrusted",
        );
    }

    #[test]
    fn a_nat64_address_is_not_the_trusted_proxy_it_embeds() {
        xff(
            "64:ff9b::10.0.0.1",
            &["203.0.113.9"],
            "64:ff9b::a00:1/0 Untrusted",
        );
    }

    #[test]
    fn a_chain_longer_than_anyone_runs_ends_where_it_stands() {
        let line = vec!["10.0.0.2"; 10_000].join(",");
        xff("10.0.0.1", &[&line], "10.0.0.2/32 TooLong");
    }

    #[test]
    fn every_fault_of_the_proxy_list_is_told_at_once() {
        let faults = Trusted::parse(&[
            "10.0.0.0/8",
            "proxy.local",
            "10.0.0.1/8",
            "0.0.0.0/0",
            "::ffff:0:0/96",
        ]);
        let told: Vec<_> = faults
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
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
        let trusted = Trusted::parse(&["::ffff:10.0.0.0/104"]).unwrap();
        assert_eq!(trusted, Trusted::parse(&["10.0.0.0/8"]).unwrap());
        assert!(trusted.trusts("10.1.2.3".parse().unwrap()));
    }
}
