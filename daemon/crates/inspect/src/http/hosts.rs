//! The host names that a request may use for this daemon.
//!
//! A malicious web page can make a browser on this machine send requests to a loopback port under the page's host name,
//! after that name's address is changed to 127.0.0.1 (DNS rebinding), and then read the response. Such a request has
//! the page's host name, so a request is refused unless it names loopback or the bound address.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::uri::Authority;

/// Whether a `Host` header names loopback or the bound address, with any port: the request may come through a tunnel.
pub(super) fn names_this_machine(host: &str, bound: IpAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    if host.contains('@') {
        return false;
    }
    let name = authority.host();
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let address = match bracketed {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => name.parse().ok(),
    };
    if let Some(address) = address {
        let address = address.to_canonical();
        return address.is_loopback() || address == bound.to_canonical();
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_and_the_bound_address_are_accepted() {
        let bound: IpAddr = "127.0.0.1".parse().unwrap();
        let own = "localhost LocalHost:9464 localhost.:1 forebay.localhost 127.0.0.1 127.0.0.1:9464 127.8.8.8:1 \
                   [::1]:9464 [::1] [::ffff:127.0.0.1]:2";
        for own in own.split(' ') {
            assert!(names_this_machine(own, bound), "{own}");
        }
        let others = "example.org|localhost.example.org:9464|127.0.0.1.example.org|notlocalhost|10.0.0.1:9464|\
                      [2001:db8::1]|user@localhost|localhost/x|localhost example.org|0.0.0.0:9464|[::]|";
        for other in others.split('|') {
            assert!(!names_this_machine(other, bound), "{other}");
        }
        let bound: IpAddr = "::1".parse().unwrap();
        assert!(names_this_machine("[::1]:1", bound) && !names_this_machine("[::2]:1", bound));
    }
}
