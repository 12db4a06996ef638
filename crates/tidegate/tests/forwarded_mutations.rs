//! Hostile forwarding headers: 200,000 seeded mutations of real ones.
//!
//! Whatever a client sends, the walk does not panic, ends on an address it may end on, and never
//! gets past the entry that a trusted proxy appended.

use std::net::IpAddr;

use tidegate::identity::Trusted;
use tidegate::identity::forwarded::{Chain, End, Walk, client};

const SEEDS: [&str; 9] = [
    "203.0.113.9, 10.0.0.2",
    "1.1.1.1:80, [2001:db8::1]:443 ,10.0.0.3",
    "::ffff:10.0.0.1, fe80::1%eth0",
    "for=192.0.2.60;proto=http;by=203.0.113.43",
    "for=\"[2001:db8:cafe::17]:4711\", for=10.0.0.2",
    "for=192.0.2.43, for=\"_x\\\"y\\\\\";secret=\"a,b;c\"",
    "For=unknown;by=_hidden,for=10.0.0.9:_port",
    "",
    "\u{feff}for=１.1.1.1,,;;==\"\"",
];
const SPICE: &[u8] = b",;=\"\\:[]%. \t\0\xff019afor";

/// xorshift64*: the same seed gives the same run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn mutate(&mut self, line: &mut Vec<u8>) {
        let at = self.below(line.len() + 1);
        match self.below(4) {
            0 => line.insert(at, SPICE[self.below(SPICE.len())]),
            1 if at < line.len() => line[at] = SPICE[self.below(SPICE.len())],
            2 if at < line.len() => _ = line.remove(at),
            _ => {
                let other = SEEDS[self.below(SEEDS.len())].as_bytes();
                let from = self.below(other.len() + 1);
                line.splice(at..at, other[from..].iter().copied());
            }
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = SEEDS[self.below(SEEDS.len())].as_bytes().to_vec();
        for _ in 0..self.below(8) {
            self.mutate(&mut line);
        }
        line
    }
}

fn walk(peer: IpAddr, chain: Chain, lines: &[Vec<u8>], trusted: &Trusted) -> Walk {
    client(peer, chain, lines.iter().map(Vec::as_slice), trusted)
}

#[test]
fn no_header_panics_or_reaches_past_what_a_trusted_proxy_wrote() {
    let trusted = Trusted::parse(&["10.0.0.0/8"]).unwrap();
    let [proxy, stranger]: [IpAddr; 2] = ["10.0.0.1", "198.51.100.7"].map(|a| a.parse().unwrap());
    let appended = [
        (Chain::XForwardedFor, ", 198.51.100.7"),
        (Chain::Forwarded, ", for=\"198.51.100.7:80\""),
    ];
    let mut dice = Dice(0x7164_6567_6174_6521);
    for round in 0..100_000 {
        let mut lines: Vec<_> = (0..=dice.below(3)).map(|_| dice.line()).collect();
        for (chain, suffix) in appended {
            let alone = walk(stranger, chain, &lines, &trusted);
            assert_eq!(alone.client, stranger, "round {round}: {lines:?}");

            let found = walk(proxy, chain, &lines, &trusted);
            let ended_on_client = found.end == End::Untrusted;
            assert_eq!(
                ended_on_client,
                !trusted.trusts(found.client),
                "round {round}: {lines:?}"
            );

            let last = lines.last_mut().unwrap();
            let len = last.len();
            last.extend_from_slice(suffix.as_bytes());
            let vouched = walk(proxy, chain, &lines, &trusted);
            assert_eq!(
                (vouched.client, vouched.hops),
                (stranger, 1),
                "round {round}: {lines:?}"
            );
            lines.last_mut().unwrap().truncate(len);
        }
    }
}
