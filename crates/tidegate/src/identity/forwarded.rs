//! The client behind proxies: walks `X-Forwarded-For` or `Forwarded` back to the client.
//!
//! The walk starts at the socket peer, the only address that a client cannot choose. While the current address is a
//! trusted proxy, its entry names the hop before it: one entry to the left, from the right end of all header lines
//! joined in order. The first untrusted address is the client. An unreadable entry stops the walk at the last
//! readable address.
//!
//! Invariant: entries left of the first untrusted address are never read, so a client cannot choose its own address
//! by sending the header itself. Without trusted proxies (the default) the client is the peer. Only the header that
//! the operator names is ever read: a proxy that appends to one of the two passes the other through as the client
//! wrote it.
//!
//! Does not mask or key addresses: see [`IpNormalizer`](super::IpNormalizer).

use std::net::IpAddr;

use super::ip;
use super::rfc7239::{elements, for_address};
use super::trusted::TrustedProxies;

/// More proxies in a row than any deployment runs. Bounds the work for a long header.
const MAX_HOPS: usize = 32;

/// Which header the trusted proxies write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For: client, proxy1, proxy2`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client;proto=https, for=proxy1` (RFC 7239)
    Forwarded,
}

impl ForwardingHeader {
    /// The name of the header, in lower case.
    pub const fn header(self) -> &'static str {
        match self {
            ForwardingHeader::XForwardedFor => "x-forwarded-for",
            ForwardingHeader::Forwarded => "forwarded",
        }
    }
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardedClient {
    /// The client's address.
    pub client: IpAddr,
    /// The number of trusted proxies that vouched for it; 0 if it is the peer itself.
    pub hops: usize,
    /// Why the walk stopped there.
    pub end: ForwardedStop,
}

/// Why a walk stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardedStop {
    /// The client is not a trusted proxy: the usual case.
    Untrusted,
    /// Every entry was a trusted proxy: the left-most one sent the request itself.
    Exhausted,
    /// The entry before the client is unreadable or empty, or hides its address.
    Malformed,
    /// More trusted hops than any deployment runs.
    TooLong,
}

/// Walks from the socket `peer` to the client. `lines` are the values of every line of the `chain` header, in the
/// order received; they are only read if `peer` is trusted.
pub fn client<'a, L>(peer: IpAddr, chain: ForwardingHeader, lines: L, trusted: &TrustedProxies) -> ForwardedClient
where
    L: IntoIterator<Item = &'a [u8]>,
    L::IntoIter: DoubleEndedIterator,
{
    let lines = lines.into_iter().rev();
    match chain {
        ForwardingHeader::XForwardedFor => walk(peer, lines.flat_map(comma_separated).map(address), trusted),
        ForwardingHeader::Forwarded => walk(peer, lines.flat_map(elements).map(for_address), trusted),
    }
}

/// The algorithm: `before` yields the earlier hops, nearest first, and `None` for an unreadable one.
fn walk(peer: IpAddr, mut before: impl Iterator<Item = Option<IpAddr>>, trusted: &TrustedProxies) -> ForwardedClient {
    let mut at = ForwardedClient { client: ip::unmapped(peer), hops: 0, end: ForwardedStop::Untrusted };
    while trusted.trusts(at.client) {
        let end = match before.next() {
            Some(Some(_)) if at.hops == MAX_HOPS => ForwardedStop::TooLong,
            Some(Some(addr)) => {
                at = ForwardedClient { client: ip::unmapped(addr), hops: at.hops + 1, end: ForwardedStop::Untrusted };
                continue;
            }
            Some(None) => ForwardedStop::Malformed,
            None => ForwardedStop::Exhausted,
        };
        return ForwardedClient { end, ..at };
    }
    at
}

/// Entries of one `X-Forwarded-For` line, right to left. An empty entry counts: its writer vouched for nothing, so
/// the walk must not pass it.
fn comma_separated(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&b| b == b',')
}

fn address(entry: &[u8]) -> Option<IpAddr> {
    ip::read(str::from_utf8(entry).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXIES: [&str; 3] = ["10.0.0.0/8", "2001:db8:face::/48", "192.0.2.1"];

    /// Walks `lines`, one header line each, and compares the result as `client/hops end`.
    #[track_caller]
    fn check(chain: ForwardingHeader, peer: &str, lines: &[&str], want: &str) {
        let trusted = TrustedProxies::parse(&PROXIES).unwrap();
        let got = client(peer.parse().unwrap(), chain, lines.iter().map(|l| l.as_bytes()), &trusted);
        let got = format!("{}/{} {:?}", got.client, got.hops, got.end);
        assert_eq!(got, want, "{chain:?} from {peer}: {lines:?}");
    }

    #[track_caller]
    fn xff(peer: &str, lines: &[&str], want: &str) {
        check(ForwardingHeader::XForwardedFor, peer, lines, want);
    }

    #[track_caller]
    fn forwarded(peer: &str, lines: &[&str], want: &str) {
        check(ForwardingHeader::Forwarded, peer, lines, want);
    }

    #[test]
    fn by_default_no_proxy_is_trusted_and_the_peer_is_the_client() {
        let peer = "10.0.0.1".parse().unwrap();
        let walked = client(peer, ForwardingHeader::default(), [&b"203.0.113.9"[..]], &TrustedProxies::default());
        assert_eq!(walked, ForwardedClient { client: peer, hops: 0, end: ForwardedStop::Untrusted });
    }

    #[test]
    fn an_untrusted_peer_cannot_choose_its_address() {
        xff("203.0.113.9", &["198.51.100.1"], "203.0.113.9/0 Untrusted");
        forwarded("203.0.113.9", &["for=198.51.100.1"], "203.0.113.9/0 Untrusted");
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        xff("10.0.0.1", &["203.0.113.9"], "203.0.113.9/1 Untrusted");
        xff("10.0.0.1", &["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9/2 Untrusted");
        xff("10.0.0.1", &["10.9.9.9, 203.0.113.9, 192.0.2.1,10.0.0.2"], "203.0.113.9/3 Untrusted");
        xff("2001:db8:face::1", &["2001:db8::9"], "2001:db8::9/1 Untrusted");
    }

    #[test]
    fn header_lines_are_one_list_in_the_order_received() {
        xff("10.0.0.1", &["1.1.1.1", "203.0.113.9", "10.0.0.2, 10.0.0.3"], "203.0.113.9/3 Untrusted");
        forwarded("10.0.0.1", &["for=1.1.1.1", "for=203.0.113.9, for=10.0.0.2"], "203.0.113.9/2 Untrusted");
    }

    #[test]
    fn when_all_are_trusted_the_left_most_proxy_is_the_client() {
        xff("10.0.0.1", &[], "10.0.0.1/0 Exhausted");
        xff("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3/2 Exhausted");
    }

    #[test]
    fn an_unreadable_entry_stops_at_the_last_good_one() {
        xff("10.0.0.1", &["203.0.113.9, garbage"], "10.0.0.1/0 Malformed");
        xff("10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2/1 Malformed");
        xff("10.0.0.1", &["203.0.113.9, , 10.0.0.2"], "10.0.0.2/1 Malformed");
        xff("10.0.0.1", &["203.0.113.9,"], "10.0.0.1/0 Malformed");
        xff("10.0.0.1", &["203.0.113.9", ""], "10.0.0.1/0 Malformed");
        xff("10.0.0.1", &["010.0.0.1"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=203.0.113.9, for=_hidden"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=203.0.113.9, for=unknown, for=10.0.0.2"], "10.0.0.2/1 Malformed");
        forwarded("10.0.0.1", &["for=203.0.113.9, proto=https"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=203.0.113.9;for=203.0.113.8"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=203.0.113.9;=x"], "10.0.0.1/0 Malformed");
        forwarded("10.0.0.1", &["for=\"203.0.113.9"], "10.0.0.1/0 Malformed");
    }

    #[test]
    fn entries_left_of_the_client_are_never_read() {
        xff("10.0.0.1", &["\u{0}garbage\", , 203.0.113.9"], "203.0.113.9/1 Untrusted");
        forwarded("10.0.0.1", &["for=\"x\\, for=203.0.113.9"], "203.0.113.9/1 Untrusted");
    }

    // Split from the left, the client's lone quote would swallow the entry that its proxy appended.
    #[test]
    fn a_quote_sent_by_the_client_does_not_hide_entries_of_proxies() {
        forwarded("10.0.0.1", &["for=\"1.1.1.1, for=203.0.113.9"], "203.0.113.9/1 Untrusted");
        forwarded("10.0.0.1", &["\", for=\"[2001:db8::9]:80\""], "2001:db8::9/1 Untrusted");
    }

    #[test]
    fn ports_brackets_case_and_wrapping_do_not_matter() {
        xff("::ffff:10.0.0.1", &["203.0.113.9:1234, [::ffff:10.0.0.2]:80"], "203.0.113.9/2 Untrusted");
        forwarded("10.0.0.1", &["For=\"[2001:DB8::9]:4711\""], "2001:db8::9/1 Untrusted");
        forwarded("10.0.0.1", &["for=\"203.0.113.9:_gazonk\""], "203.0.113.9/1 Untrusted");
        forwarded("10.0.0.1", &["proto=http ; FOR=203.0.113.9; by=10.0.0.1;"], "203.0.113.9/1 Untrusted");
        forwarded("10.0.0.1", &["for=203.0.113.9;ext=\"a,b;\\\"c\""], "203.0.113.9/1 Untrusted");
    }

    #[test]
    fn a_nat64_address_is_not_the_trusted_proxy_it_embeds() {
        xff("64:ff9b::10.0.0.1", &["203.0.113.9"], "64:ff9b::a00:1/0 Untrusted");
    }

    #[test]
    fn a_chain_longer_than_any_deployment_runs_stops_at_the_limit() {
        let line = vec!["10.0.0.2"; 10_000].join(",");
        xff("10.0.0.1", &[&line], "10.0.0.2/32 TooLong");
    }
}
