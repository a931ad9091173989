//! An address range in CIDR notation: `10.0.0.0/8`, `fd00::/8`, or one address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use windlass_core::Invalid;

/// A range of addresses that share a prefix: the first address and the prefix length in bits.
///
/// ```
/// use windlass_http::Cidr;
///
/// let range: Cidr = "10.0.0.0/8".parse().unwrap();
/// assert!(range.contains("10.1.2.3".parse().unwrap()));
/// assert!("10.0.0.1/8".parse::<Cidr>().is_err(), "not the first address of the range");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cidr {
    /// An IPv4 range.
    V4(Ipv4Addr, u8),
    /// An IPv6 range.
    V6(Ipv6Addr, u8),
}

impl Cidr {
    /// Whether the range contains the address.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self, address) {
            (Cidr::V4(start, bits), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                (u32::from(start) ^ u32::from(address)) & mask == 0
            }
            (Cidr::V6(start, bits), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                (u128::from(start) ^ u128::from(address)) & mask == 0
            }
            _ => false,
        }
    }

    /// Whether the range is exactly this one address.
    pub fn is_exactly(self, address: IpAddr) -> bool {
        let whole = matches!(self, Cidr::V4(_, 32) | Cidr::V6(_, 128));
        whole && self.contains(address)
    }
}

impl FromStr for Cidr {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = |rule: String| Invalid::new("", rule);
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            let rule = "must be an address or a range of addresses, such as 10.0.0.0/8 or fd00::/8";
            return Err(refuse(rule.to_owned()));
        };
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => Some(bits_max),
            Some(bits) => bits.parse::<u8>().ok().filter(|bits| *bits <= bits_max),
        };
        let Some(bits) = bits else {
            return Err(refuse(format!(
                "must have a number from 0 to {bits_max} after the slash"
            )));
        };
        let range = match address {
            IpAddr::V4(start) => Cidr::V4(start, bits),
            IpAddr::V6(start) => Cidr::V6(start, bits),
        };
        let first = range.first();
        if first != address {
            let rule =
                format!("must start at the first address of the range: write {first}/{bits}");
            return Err(refuse(rule));
        }
        Ok(range)
    }
}

impl Cidr {
    fn first(self) -> IpAddr {
        match self {
            Cidr::V4(start, bits) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Ipv4Addr::from(u32::from(start) & mask).into()
            }
            Cidr::V6(start, bits) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Ipv6Addr::from(u128::from(start) & mask).into()
            }
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cidr::V4(start, bits) => write!(f, "{start}/{bits}"),
            Cidr::V6(start, bits) => write!(f, "{start}/{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_parsed_and_printed() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("127.0.0.1", "127.0.0.1/32"),
            ("::/0", "::/0"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "x",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/",
            "10.0.0.0/8/8",
            "::/129",
            "10.0.0.1/8",
            "10/8",
            "fd00::1/8",
            "10.0.0.0/ 8",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_contains_only_its_own_address_family() {
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("1.2.3.4".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
        assert!(!all.is_exactly("1.2.3.4".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn a_longer_prefix_contains_fewer_addresses(address in any::<u32>(), other in any::<u32>(), bits in 0u8..32) {
            let (address, other) = (Ipv4Addr::from(address), IpAddr::from(Ipv4Addr::from(other)));
            let (wide, narrow) = (Cidr::V4(address, bits), Cidr::V4(address, bits + 1));
            prop_assert!(wide.contains(address.into()) && narrow.contains(address.into()));
            prop_assert!(wide.contains(other) || !narrow.contains(other));
        }
    }
}
