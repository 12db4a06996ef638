//! Map from networks to values. All networks that contain an address are found by one lookup per prefix length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

/// A map from networks to values. IPv4 and IPv6 networks are separate.
#[derive(Clone, Debug)]
pub(crate) struct NetMap<T> {
    /// Tables by prefix length, longest first, only for lengths in use.
    v4: Vec<(u8, FxHashMap<u32, T>)>,
    v6: Vec<(u8, FxHashMap<u128, T>)>,
}

impl<T> Default for NetMap<T> {
    fn default() -> Self {
        NetMap { v4: Vec::new(), v6: Vec::new() }
    }
}

impl<T: Default> NetMap<T> {
    /// The value of `net`, created if absent.
    pub(crate) fn entry(&mut self, net: IpNet) -> &mut T {
        match net {
            IpNet::V4(net) => prefix_table(&mut self.v4, net.prefix_len()).entry(net.network().to_bits()).or_default(),
            IpNet::V6(net) => prefix_table(&mut self.v6, net.prefix_len()).entry(net.network().to_bits()).or_default(),
        }
    }
}

impl<T> NetMap<T> {
    /// Every network and its value, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpNet, &T)> {
        let v4 = self.v4.iter().flat_map(|(length, nets)| {
            let net = |bits: u32| IpNet::new(Ipv4Addr::from_bits(bits).into(), *length).ok();
            nets.iter().filter_map(move |(bits, value)| Some((net(*bits)?, value)))
        });
        let v6 = self.v6.iter().flat_map(|(length, nets)| {
            let net = |bits: u128| IpNet::new(Ipv6Addr::from_bits(bits).into(), *length).ok();
            nets.iter().filter_map(move |(bits, value)| Some((net(*bits)?, value)))
        });
        v4.chain(v6)
    }

    /// The values of all networks that contain every address of `net`, narrowest first.
    pub(crate) fn covering(&self, net: IpNet) -> impl Iterator<Item = &T> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(net), None),
            IpNet::V6(net) => (None, Some(net)),
        };
        let of_v4 = v4.into_iter().flat_map(|net| {
            let wider = self.v4.iter();
            let wider = wider.filter(move |(length, _)| *length <= net.prefix_len());
            wider.filter_map(move |(length, nets)| nets.get(&mask_v4(net.network().to_bits(), *length)))
        });
        let of_v6 = v6.into_iter().flat_map(|net| {
            let wider = self.v6.iter();
            let wider = wider.filter(move |(length, _)| *length <= net.prefix_len());
            wider.filter_map(move |(length, nets)| nets.get(&mask_v6(net.network().to_bits(), *length)))
        });
        of_v4.chain(of_v6)
    }

    /// The values of all networks that contain `ip`, narrowest first.
    pub(crate) fn containing(&self, ip: IpAddr) -> impl Iterator<Item = &T> {
        let (v4, v6) = match ip {
            IpAddr::V4(ip) => (Some(ip.to_bits()), None),
            IpAddr::V6(ip) => (None, Some(ip.to_bits())),
        };
        let of_v4 = v4
            .into_iter()
            .flat_map(|ip| self.v4.iter().filter_map(move |(length, nets)| nets.get(&mask_v4(ip, *length))));
        let of_v6 = v6
            .into_iter()
            .flat_map(|ip| self.v6.iter().filter_map(move |(length, nets)| nets.get(&mask_v6(ip, *length))));
        of_v4.chain(of_v6)
    }
}

fn prefix_table<K, T>(levels: &mut Vec<(u8, FxHashMap<K, T>)>, length: u8) -> &mut FxHashMap<K, T> {
    let at = levels.partition_point(|(known, _)| *known > length);
    if levels.get(at).is_none_or(|(known, _)| *known != length) {
        levels.insert(at, (length, FxHashMap::default()));
    }
    &mut levels[at].1
}

fn mask_v4(ip: u32, length: u8) -> u32 {
    ip & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or_default()
}

fn mask_v6(ip: u128, length: u8) -> u128 {
    ip & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or_default()
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
        let mut all: Vec<(IpNet, u32)> = map.iter().map(|(net, value)| (net, *value)).collect();
        all.sort_by_key(|(_, value)| *value);
        assert_eq!(all.iter().map(|(net, _)| net.to_string()).collect::<Vec<_>>(), nets);
    }
}
