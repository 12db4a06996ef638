//! Map from networks to values. All networks that contain an address are found by one lookup per prefix length.

use std::net::IpAddr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

/// A map from networks to values. IPv4 and IPv6 networks are separate.
#[derive(Clone, Debug)]
pub(crate) struct NetMap<T> {
    /// By family: tables by prefix length, longest first, only for lengths in use.
    families: [Vec<(u8, FxHashMap<u128, T>)>; 2],
}

impl<T> Default for NetMap<T> {
    fn default() -> Self {
        NetMap { families: [Vec::new(), Vec::new()] }
    }
}

impl<T: Default> NetMap<T> {
    /// The value of `net`, created if absent.
    pub(crate) fn entry(&mut self, net: IpNet) -> &mut T {
        let (family, bits) = family_and_bits(net.network());
        let (tables, length) = (&mut self.families[family], net.prefix_len());
        let at = tables.partition_point(|(known, _)| *known > length);
        if tables.get(at).is_none_or(|(known, _)| *known != length) {
            tables.insert(at, (length, FxHashMap::default()));
        }
        tables[at].1.entry(bits).or_default()
    }
}

impl<T> NetMap<T> {
    /// The values of all networks that contain every address of `net`, narrowest first.
    pub(crate) fn covering(&self, net: IpNet) -> impl Iterator<Item = &T> {
        let (family, bits) = family_and_bits(net.network());
        let wider = self.families[family].iter().filter(move |(length, _)| *length <= net.prefix_len());
        wider.filter_map(move |(length, nets)| nets.get(&mask(bits, *length)))
    }

    /// The values of all networks that contain `ip`, narrowest first.
    pub(crate) fn containing(&self, ip: IpAddr) -> impl Iterator<Item = &T> {
        let (family, bits) = family_and_bits(ip);
        self.families[family].iter().filter_map(move |(length, nets)| nets.get(&mask(bits, *length)))
    }
}

/// An address as the highest bits of a number, so that prefixes of both families are masked alike.
fn family_and_bits(ip: IpAddr) -> (usize, u128) {
    match ip {
        IpAddr::V4(ip) => (0, u128::from(ip.to_bits()) << 96),
        IpAddr::V6(ip) => (1, ip.to_bits()),
    }
}

fn mask(bits: u128, length: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_that_contains_an_address_is_found_narrowest_first() {
        let mut map: NetMap<u32> = NetMap::default();
        let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/64"];
        for (i, net) in nets.into_iter().enumerate() {
            *map.entry(net.parse().unwrap()) = i as u32;
        }
        let check = |ip: &str, want: &[u32]| {
            let found: Vec<u32> = map.containing(ip.parse().unwrap()).copied().collect();
            assert_eq!(found, want, "{ip}");
        };
        check("10.1.2.3", &[3, 2, 1, 0]);
        check("10.9.0.1", &[1, 0]);
        check("192.0.2.1", &[0]);
        check("2001:db8::7", &[5, 4]);
        check("2001:db9::7", &[4]);
        let covering = |net: &str| -> Vec<u32> { map.covering(net.parse().unwrap()).copied().collect() };
        assert_eq!(covering("10.1.0.0/16"), [2, 1, 0]);
        assert_eq!(covering("10.0.0.0/7"), [0]);
        assert_eq!(covering("2001:db8::/63"), [4]);
    }
}
