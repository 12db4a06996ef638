//! Hostile forwarding headers: mutations of real ones.
//!
//! Whatever a client sends, the walk does not panic, ends on an allowed address, and never passes the entry that a
//! trusted proxy appended.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use tidegate::identity::TrustedProxies;
use tidegate::identity::forwarded::{ForwardedClient, ForwardedStop, ForwardingHeader, client};
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

/// Each line of an input is one header.
const GOOD: &[&[u8]] = &[
    b"203.0.113.9, 10.0.0.2",
    b"1.1.1.1:80, [2001:db8::1]:443 ,10.0.0.3\n203.0.113.9",
    b"::ffff:10.0.0.1, fe80::1%eth0",
    b"for=192.0.2.60;proto=http;by=203.0.113.43",
    b"for=\"[2001:db8:cafe::17]:4711\", for=10.0.0.2\nfor=10.0.0.2\nfor=10.0.0.3",
    b"for=192.0.2.43, for=\"_x\\\"y\\\\\";secret=\"a,b;c\"",
    b"For=unknown;by=_hidden,for=10.0.0.9:_port",
    b"",
    b"\xef\xbb\xbffor=\xef\xbc\x91.1.1.1,,;;==\"\"",
];
const TOKENS: &[&[u8]] = &[
    b",",
    b";",
    b"=",
    b"\"",
    b"\\",
    b":",
    b"[",
    b"]",
    b"%",
    b".",
    b" ",
    b"\t",
    b"\0",
    b"\xff",
    b"0",
    b"1",
    b"9",
    b"a",
    b"f",
    b"for=",
    b"\n",
    b"10.0.0.2",
    b"::ffff:",
    b"unknown",
];

fn walk(peer: IpAddr, chain: ForwardingHeader, lines: &[Vec<u8>], trusted: &TrustedProxies) -> ForwardedClient {
    client(peer, chain, lines.iter().map(Vec::as_slice), trusted)
}

#[test]
fn no_header_panics_or_reaches_past_the_entry_of_a_trusted_proxy() {
    let trusted = TrustedProxies::parse(&["10.0.0.0/8"]).unwrap();
    let [proxy, stranger]: [IpAddr; 2] = ["10.0.0.1", "198.51.100.7"].map(|a| a.parse().unwrap());
    let appended = [
        (ForwardingHeader::XForwardedFor, ", 198.51.100.7"),
        (ForwardingHeader::Forwarded, ", for=\"198.51.100.7:80\""),
    ];
    let attack = FuzzTarget {
        parser: "forwarded",
        seed: 0x7164_6567_6174_6521,
        inputs: inputs::FORWARDED,
        corpus: GOOD,
        tokens: TOKENS,
        delimiters: &[(b"\"", b"\""), (b"[", b"]"), (b"for=", b";")],
        numbers: NumberEncoding::Digits,
        max_len: 4_000,
    };
    let mut clients_found = 0;
    let walks = |input: &[u8]| {
        let mut lines: Vec<_> = input.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        for (chain, suffix) in appended {
            let alone = walk(stranger, chain, &lines, &trusted);
            assert_eq!(alone.client, stranger);

            let found = walk(proxy, chain, &lines, &trusted);
            let ended_on_client = found.end == ForwardedStop::Untrusted;
            assert_eq!(ended_on_client, !trusted.trusts(found.client));
            clients_found += u32::from(ended_on_client);

            let last = lines.last_mut().unwrap();
            let len = last.len();
            last.extend_from_slice(suffix.as_bytes());
            let vouched = walk(proxy, chain, &lines, &trusted);
            assert_eq!((vouched.client, vouched.hops), (stranger, 1));
            lines.last_mut().unwrap().truncate(len);
        }
        true
    };
    let outcome = attack.run(walks, |_| {});
    assert!(clients_found > attack.inputs / 10, "too wild to test much: {clients_found}");
    println!("{outcome:?}, a client {clients_found} times");
}
