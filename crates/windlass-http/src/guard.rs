//! Which addresses requests may reach: public ones, and those that the operator opened.
//!
//! Pure. The connector asks about the address of the socket itself, so it does not matter how the
//! address was written or which DNS server returned it. The guard refuses every address that is not
//! known to be public.

mod cidr;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use cidr::Cidr;

/// Metadata services of clouds. A range does not open them; only the exact address does.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// IPv4 ranges that are not public: first address and prefix length.
const CLOSED_V4: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8),        // this network
    ([10, 0, 0, 0], 8),       // private
    ([100, 64, 0, 0], 10),    // carrier-grade NAT
    ([127, 0, 0, 0], 8),      // loopback
    ([168, 63, 129, 16], 32), // metadata of one cloud
    ([169, 254, 0, 0], 16),   // link-local
    ([172, 16, 0, 0], 12),    // private
    ([192, 0, 0, 0], 24),     // protocol assignments
    ([192, 0, 2, 0], 24),     // documentation
    ([192, 88, 99, 0], 24),   // 6to4 relays, no longer in use
    ([192, 168, 0, 0], 16),   // private
    ([198, 18, 0, 0], 15),    // benchmarks
    ([198, 51, 100, 0], 24),  // documentation
    ([203, 0, 113, 0], 24),   // documentation
    ([224, 0, 0, 0], 4),      // multicast
    ([240, 0, 0, 0], 4),      // reserved, and broadcast
];

/// IPv6 ranges inside 2000::/3 that are not public. Nothing outside 2000::/3 is.
const CLOSED_V6: [([u16; 8], u8); 5] = [
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), // protocol assignments, Teredo, ORCHID, benchmarks
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), // 6to4
    ([0x3ffe, 0, 0, 0, 0, 0, 0, 0], 16), // a former test network
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), // documentation
];

/// Decides which addresses requests may reach.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    opened: Vec<Cidr>,
}

impl Guard {
    /// Creates a guard that allows public addresses and these ranges.
    pub fn new(opened: Vec<Cidr>) -> Self {
        Guard { opened }
    }

    /// Whether requests may reach the address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = unwrap_ipv4(address);
        if self.opened.iter().any(|range| range.is_exactly(address)) {
            return true;
        }
        if is_metadata(address) {
            return false;
        }
        is_public(address) || self.opened.iter().any(|range| range.contains(address))
    }
}

/// The class of an address that a request went to, a label of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetClass {
    /// A public address.
    Public,
    /// An address that is not public, but opened by the operator.
    Opened,
}

impl TargetClass {
    /// Returns the class of an address that was dialled.
    pub(crate) fn of(address: IpAddr) -> Self {
        if is_public(unwrap_ipv4(address)) {
            TargetClass::Public
        } else {
            TargetClass::Opened
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetClass::Public => "public",
            TargetClass::Opened => "opened",
        }
    }
}

/// Returns the IPv4 address inside an IPv4-mapped or NAT64 address; other addresses unchanged.
fn unwrap_ipv4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    let translated = within_v6(v6, [0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
    match v6.octets() {
        [.., a, b, c, d] if translated => Ipv4Addr::new(a, b, c, d).into(),
        _ => address,
    }
}

fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => METADATA_V6.contains(&v6),
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !CLOSED_V4
            .iter()
            .any(|(start, bits)| within_v4(v4, *start, *bits)),
        IpAddr::V6(v6) => {
            within_v6(v6, [0x2000, 0, 0, 0, 0, 0, 0, 0], 3)
                && !CLOSED_V6
                    .iter()
                    .any(|(start, bits)| within_v6(v6, *start, *bits))
                && !is_isatap(v6)
        }
    }
}

/// Whether this is an ISATAP address. Its lower half is an IPv4 address, which a tunnel on this
/// machine would connect to.
fn is_isatap(address: Ipv6Addr) -> bool {
    let [_, _, _, _, flags, marker, _, _] = address.segments();
    marker == 0x5efe && matches!(flags, 0 | 0x200)
}

fn within_v4(address: Ipv4Addr, start: [u8; 4], bits: u8) -> bool {
    Cidr::V4(Ipv4Addr::from(start), bits).contains(address.into())
}

fn within_v6(address: Ipv6Addr, start: [u16; 8], bits: u8) -> bool {
    Cidr::V6(Ipv6Addr::from(start), bits).contains(address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(opened: &[&str]) -> Guard {
        Guard::new(opened.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn public_addresses_pass() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "168.63.129.15",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(guard(&[]).allows(ip(text)), "{text}");
        }
    }

    #[test]
    fn the_first_and_last_addresses_of_closed_ranges_are_refused() {
        for text in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.255.255.255",
            "169.254.0.0",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.255.255",
            "198.19.255.255",
            "224.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "1fff:ffff::",
            "4000::",
            "2001:1ff:ffff::",
            "2001:db8:ffff::",
            "2002::",
            "2a00:1450::5efe:7f00:1",
            "2a00:1450::200:5efe:7f00:1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!guard(&[]).allows(ip(text)), "{text}");
        }
    }

    #[test]
    fn an_opened_range_opens_only_itself_in_every_spelling() {
        let guard = guard(&["10.1.0.0/16", "fd00:1::/32"]);
        for text in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "64:ff9b::a01:203",
            "fd00:1::5",
        ] {
            assert!(guard.allows(ip(text)), "{text}");
        }
        for text in [
            "10.2.0.0",
            "127.0.0.1",
            "::ffff:10.2.0.1",
            "fd00:2::5",
            "::1",
        ] {
            assert!(!guard.allows(ip(text)), "{text}");
        }
    }

    #[test]
    fn a_metadata_address_is_opened_only_by_the_exact_address() {
        let wide = guard(&["0.0.0.0/0", "::/0", "169.254.0.0/16"]);
        for text in ["169.254.169.254", "168.63.129.16", "::ffff:169.254.169.254"] {
            assert!(!wide.allows(ip(text)), "{text}");
        }
        assert!(!wide.allows(ip("fd00:ec2::254")));
        assert!(wide.allows(ip("169.254.1.1")) && wide.allows(ip("127.0.0.1")));
        assert!(guard(&["169.254.169.254/32"]).allows(ip("169.254.169.254")));
        assert!(guard(&["fd00:ec2::254"]).allows(ip("fd00:ec2::254")));
    }
}
