//! Address ranges: `10.0.0.0/8`, `2001:db8::/32`, or one address.
//!
//! An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is that IPv4 address everywhere: in asks, in
//! networks, in keys. Otherwise one client would have two counters.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::declaration::Network;
use crate::errors::messages;

impl Network {
    /// The network of this address with this many leading bits; the other bits are cleared.
    ///
    /// # Errors
    ///
    /// When there are more than 32 leading bits, or 128 for IPv6.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NetworkError> {
        let (address, prefix) = match (address, address.to_canonical()) {
            // A mapped network keeps its bits within the IPv4 part, if it has any there.
            (IpAddr::V6(_), IpAddr::V4(mapped)) if (96..=128).contains(&prefix) => {
                (IpAddr::V4(mapped), prefix.saturating_sub(96))
            }
            _ => (address, prefix),
        };
        if prefix > width(address) {
            return Err(NetworkError::Prefix);
        }
        Ok(Self { address: masked(address, prefix), prefix })
    }

    /// True if the address is in this network. IPv4-mapped addresses are IPv4 addresses.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

/// The address with only its first `prefix` bits.
pub(super) fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let hidden = 32_u32.saturating_sub(u32::from(prefix));
            let mask = u32::MAX.checked_shl(hidden).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let hidden = 128_u32.saturating_sub(u32::from(prefix));
            let mask = u128::MAX.checked_shl(hidden).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Parses `address` or `address/prefix`. Bits after the prefix must be zero: `10.0.0.1/8` is
    /// ambiguous.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = text.split_once('/').unzip();
        let address = address.unwrap_or(text);
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
        let prefix = match prefix {
            None => width(address),
            Some(signed) if signed.starts_with('+') => return Err(NetworkError::Prefix),
            Some(digits) => digits.parse().map_err(|_| NetworkError::Prefix)?,
        };
        let network = Self::new(address, prefix)?;
        let given = if network.address.is_ipv4() { address.to_canonical() } else { address };
        if network.address == given { Ok(network) } else { Err(NetworkError::HostBits) }
    }
}

/// Prints the form that parses to the same network. A single address has no prefix.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.prefix == width(self.address) { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// The reason why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetworkError {
    /// The part before the slash is not an address.
    Address,
    /// The part after the slash is not a number of leading bits.
    Prefix,
    /// Bits after the prefix are set.
    HostBits,
}

messages! { NetworkError:
    Self::Address => "not an address";
    Self::Prefix => "the prefix is not a number up to 32, or 128 for IPv6";
    Self::HostBits => "bits after the prefix are set";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        let ten = network("10.0.0.0/8");

        assert!(ten.contains("10.255.0.1".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.1.2.3".parse().unwrap()), "mapped is the same client");
        assert!(!ten.contains("a00::1".parse().unwrap()));
        assert!(network("0.0.0.0/0").contains("1.2.3.4".parse().unwrap()));
        assert!(!network("0.0.0.0/0").contains("::1".parse().unwrap()));
        assert!(network("2001:db8::/32").contains("2001:db8:ffff::1".parse().unwrap()));
        assert!(network("::/0").contains("::1".parse().unwrap()));
    }

    #[test]
    fn what_is_printed_reads_the_same() {
        for text in ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1", "::/0", "0.0.0.0/0"] {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
        assert_eq!(network("::ffff:192.0.2.7").to_string(), "192.0.2.7");
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.1/8", "10/8", "a", "10.0.0.0/", "::1/+8"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
