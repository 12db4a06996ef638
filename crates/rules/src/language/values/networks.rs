//! Networks as people write them. A form that would silently mean something else is rejected.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::language::diagnostics::quoted;

/// Parses a network or a single address that clients are compared with. IPv6 addresses of clients are cut to
/// `ipv6_prefix`, so a narrower network could never match and is an error.
pub(crate) fn parse_client_net(text: &str, ipv6_prefix: u8) -> Result<IpNet, String> {
    let net = parse_net(text)?;
    let named = |wrong: String| format!("{}, {wrong}", quoted(text));
    reject_nat64(net).map_err(named)?;
    match net {
        IpNet::V6(wide) if wide.prefix_len() > ipv6_prefix => {
            Err(named(cut_error(ipv6_prefix, cut_to(net, ipv6_prefix))))
        }
        net => Ok(net),
    }
}

/// The network of `prefix` bits around a narrower one.
pub(crate) fn cut_to(net: IpNet, prefix: u8) -> IpNet {
    IpNet::new(net.addr(), prefix).map_or(net, |cut| cut.trunc())
}

/// The error for an IPv6 network that is narrower than a client.
pub(crate) fn cut_error(ipv6_prefix: u8, cut: IpNet) -> String {
    format!(
        "but IPv6 addresses are cut to /{ipv6_prefix} before they are compared; write {cut}, or a larger \
         identity.ipv6_prefix, which gives each address of a client a limit of its own"
    )
}

/// Rejects a network of NAT64: no client has an address of it here.
pub(crate) fn reject_nat64(net: IpNet) -> Result<(), String> {
    ipv4_behind_nat64(net).map_or(Ok(()), |plain| {
        Err(format!("an address of NAT64, but clients behind it are counted by their IPv4 addresses; write {plain}"))
    })
}

/// What to write instead of a network within `64:ff9b::/96` (RFC 6052), or instead of one that contains all of it:
/// the IPv4 addresses that it stands for.
fn ipv4_behind_nat64(net: IpNet) -> Option<String> {
    let IpNet::V6(net) = net else { return None };
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = net.addr().segments() else { return None };
    let Some(prefix) = net.prefix_len().checked_sub(96) else {
        return (net.prefix_len() >= 64).then(|| "their IPv4 addresses".to_owned());
    };
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    let plain = IpNet::new(IpAddr::from([a, b, c, d]), prefix).ok()?;
    Some(if prefix == 32 { plain.addr().to_string() } else { plain.trunc().to_string() })
}

/// Parses a network (`10.0.0.0/8`) or a single address.
pub(crate) fn parse_net(text: &str) -> Result<IpNet, String> {
    let net = match text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => text.parse::<IpNet>().map_err(|_| {
            format!("{}, which is neither an address nor a network; write 192.0.2.7 or 192.0.2.0/24", quoted(text))
        })?,
    };
    if net.addr() != net.network() {
        let cut = net.trunc();
        return Err(format!("{}, which has bits beyond its prefix; write {cut}", quoted(text)));
    }
    if let IpAddr::V6(ip) = net.addr()
        && let Some(plain) = ip.to_ipv4_mapped()
    {
        // No bits are beyond the prefix, so the prefix is at least that of `::ffff:0:0/96`.
        let prefix = net.prefix_len().saturating_sub(96);
        let plain = match IpNet::new(IpAddr::V4(plain), prefix) {
            Ok(net) if prefix < 32 => net.to_string(),
            _ => plain.to_string(),
        };
        return Err(format!(
            "{}, an IPv4 address in IPv6 form, which clients never have here; write {plain}",
            quoted(text)
        ));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_for_an_ipv4_network_in_ipv6_form_keeps_its_prefix() {
        for (text, cure) in [
            ("::ffff:1.2.3.4", "write 1.2.3.4"),
            ("::ffff:1.2.3.4/128", "write 1.2.3.4"),
            ("::ffff:1.2.3.0/120", "write 1.2.3.0/24"),
            ("::ffff:0:0/96", "write 0.0.0.0/0"),
        ] {
            let wrong = parse_net(text).unwrap_err();
            assert!(wrong.ends_with(cure), "{wrong}");
        }
    }
}
