//! Networks as people write them, refused where they would silently mean something else.

use std::net::IpAddr;

use ipnet::IpNet;

use super::fault::shown;

/// A network or a single address, as clients are seen: IPv6 addresses are cut to `ipv6_prefix`, so
/// that nothing narrower can ever match.
pub(crate) fn parse_client_net(text: &str, ipv6_prefix: u8) -> Result<IpNet, String> {
    let net = parse_net(text)?;
    match net {
        IpNet::V6(wide) if wide.prefix_len() > ipv6_prefix => {
            let cut = IpNet::new(net.addr(), ipv6_prefix).map_or(net, |cut| cut.trunc());
            Err(format!(
                "{}, but IPv6 addresses are cut to /{ipv6_prefix} before they are compared; write \
                 {cut}, or a larger identity.ipv6_prefix",
                shown(text)
            ))
        }
        net => Ok(net),
    }
}

/// A network (`10.0.0.0/8`) or a single address.
pub(crate) fn parse_net(text: &str) -> Result<IpNet, String> {
    let net = match text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => text.parse::<IpNet>().map_err(|_| {
            format!(
                "{}, which is neither an address nor a network; write 192.0.2.7 or 192.0.2.0/24",
                shown(text)
            )
        })?,
    };
    if net.addr() != net.network() {
        let cut = net.trunc();
        return Err(format!(
            "{}, which has bits beyond its prefix; write {cut}",
            shown(text)
        ));
    }
    if let IpAddr::V6(ip) = net.addr()
        && let Some(plain) = ip.to_ipv4_mapped()
    {
        return Err(format!(
            "{}, an IPv4 address in IPv6 form, which clients never have here; write {plain}",
            shown(text)
        ));
    }
    Ok(net)
}
