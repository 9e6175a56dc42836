//! The client's address, from the connection's peer and the headers of trusted proxies.
//!
//! Anybody can write anything into a header. Only the peer of the connection is certain; if it is a
//! trusted proxy, so is the one address that it appended; if that is a trusted proxy, the address
//! before it, and so on. So the list is walked from the right while addresses are trusted, and the
//! first untrusted one is the client. Everything to the left of it was written by the client and is
//! ignored.
//!
//! A pure function of headers and peer. `forwarded.rs` parses the elements of a field.

use std::fmt;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use tollgate_core::rule::NetworkError;
use tollgate_core::rule::declaration::Network;

use super::forwarded;

/// The trusted proxies, and the field in which they pass on the client's address.
///
/// ```
/// use http::HeaderMap;
/// use tollgate::http::Trust;
///
/// let trust = Trust::proxies(["10.0.0.0/8", "fd00::/8"])?;
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.9, 10.0.0.2".parse()?);
///
/// let client = trust.client([10, 0, 0, 1].into(), &headers)?;
/// assert_eq!(client.to_string(), "203.0.113.9", "the last address that is not a trusted proxy");
///
/// let direct = trust.client([198, 51, 100, 1].into(), &headers)?;
/// assert_eq!(direct.to_string(), "198.51.100.1", "an untrusted peer is the client");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trust {
    proxies: Vec<Network>,
    field: ForwardedBy,
}

/// The field in which proxies pass on the client's address.
#[derive(Clone, Debug, Default)]
enum ForwardedBy {
    #[default]
    XForwardedFor,
    Forwarded,
    One(HeaderName),
}

/// The most proxies in the list of a request: more than any fleet has.
pub const MAX_HOPS: usize = 50;

/// The most bytes of that list.
pub const MAX_BYTES: usize = 4096;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl Trust {
    /// Trusts no proxy: the client is the peer of the connection, and no header is read.
    pub const fn nobody() -> Self {
        Self { proxies: Vec::new(), field: ForwardedBy::XForwardedFor }
    }

    /// Trusts the addresses that peers in these networks append to `X-Forwarded-For`.
    ///
    /// # Errors
    ///
    /// When one of them is neither an address nor a network, or has bits set beyond its prefix.
    pub fn proxies<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = networks.into_iter().map(|network| network.as_ref().parse());
        Ok(Self::networks(networks.collect::<Result<Vec<_>, _>>()?))
    }

    /// The same for parsed networks.
    pub fn networks(networks: impl IntoIterator<Item = Network>) -> Self {
        Self { proxies: networks.into_iter().collect(), field: ForwardedBy::default() }
    }

    /// Reads `Forwarded` (RFC 7239) instead.
    pub fn by_forwarded(mut self) -> Self {
        self.field = ForwardedBy::Forwarded;
        self
    }

    /// Reads a field of one address instead, such as `X-Real-IP` or `CF-Connecting-IP`. Use it only if
    /// the proxy replaces the field: a client could choose its address otherwise.
    pub fn by_header(mut self, name: HeaderName) -> Self {
        self.field = ForwardedBy::One(name);
        self
    }

    /// The client's address. An IPv4-mapped IPv6 address becomes IPv4.
    ///
    /// An element that is no address (`unknown`, `_hidden`, garbage) ends the walk: the client is then
    /// the last trusted proxy. So garbage gets nobody out of a limit; at worst, clients behind that
    /// proxy share one.
    ///
    /// # Errors
    ///
    /// When a trusted proxy passes on more than [`MAX_HOPS`] elements or [`MAX_BYTES`] bytes.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Result<IpAddr, TooManyHops> {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return Ok(peer);
        }
        match &self.field {
            ForwardedBy::XForwardedFor => {
                self.walk(peer, headers, &X_FORWARDED_FOR, forwarded::address)
            }
            ForwardedBy::Forwarded => self.walk(peer, headers, &FORWARDED, forwarded::element),
            ForwardedBy::One(name) => {
                let mut lines = headers.get_all(name).iter();
                // With two lines, it is unknown which one the proxy wrote.
                let (Some(line), None) = (lines.next(), lines.next()) else { return Ok(peer) };
                Ok(forwarded::address(line.as_bytes()).unwrap_or(peer))
            }
        }
    }

    /// Walks a list from its right end while addresses are trusted.
    fn walk(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        name: &HeaderName,
        read: impl Fn(&[u8]) -> Option<IpAddr>,
    ) -> Result<IpAddr, TooManyHops> {
        let (mut bytes, mut hops) = (0_usize, 0_usize);
        for line in headers.get_all(name) {
            let commas = line.as_bytes().iter().filter(|byte| **byte == b',').count();
            bytes = bytes.saturating_add(line.len());
            hops = hops.saturating_add(commas).saturating_add(1);
        }
        if bytes > MAX_BYTES || hops > MAX_HOPS {
            return Err(TooManyHops);
        }
        let lines = headers.get_all(name).iter().rev();
        let elements = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        let mut last = peer;
        for element in elements {
            // Empty elements do not count (RFC 9110, 5.6.1).
            if element.trim_ascii().is_empty() {
                continue;
            }
            let Some(address) = read(element) else { return Ok(last) };
            last = address;
            if !self.trusts(last) {
                return Ok(last);
            }
        }
        Ok(last)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(address))
    }
}

/// The list of proxies is too long. The layer answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHops;

impl fmt::Display for TooManyHops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the list of proxies has more than {MAX_HOPS} hops or {MAX_BYTES} bytes")
    }
}

impl std::error::Error for TooManyHops {}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tollgate_core::testing::Rng;

    use super::*;

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    fn ours() -> Trust {
        Trust::proxies(["10.0.0.0/8", "fd00::/8"]).unwrap()
    }

    /// The client, said by a proxy of ours at 10.0.0.1.
    fn client(lines: &[&str]) -> String {
        let headers = headers("x-forwarded-for", lines);
        ours().client([10, 0, 0, 1].into(), &headers).unwrap().to_string()
    }

    /// C1
    #[test]
    fn what_an_untrusted_peer_says_changes_nothing() {
        let long = "9.9.9.9,".repeat(600);
        for lines in [&["1.2.3.4"][..], &["x", "10.0.0.1"], &["", ","], &[&long]] {
            let headers = headers("x-forwarded-for", lines);
            let peer = [198, 51, 100, 7].into();
            assert_eq!(ours().client(peer, &headers), Ok(peer));
            assert_eq!(Trust::nobody().client(peer, &headers), Ok(peer));
        }
    }

    /// C2
    #[test]
    fn the_walk_goes_from_right_to_left_and_never_past_what_is_there() {
        assert_eq!(client(&[]), "10.0.0.1");
        assert_eq!(client(&["10.0.0.2"]), "10.0.0.2", "all are ours");
        assert_eq!(client(&["6.6.6.6, 7.7.7.7, 10.0.0.3, 10.0.0.2"]), "7.7.7.7");
        assert_eq!(client(&["6.6.6.6, fd00::1, 10.0.0.2"]), "6.6.6.6");
        let fifty = format!("203.0.113.9{}", ", 10.0.0.2".repeat(MAX_HOPS - 1));
        assert_eq!(client(&[&fifty]), "203.0.113.9");
    }

    /// C2
    #[test]
    fn more_than_fifty_hops_or_four_kibibytes_are_refused() {
        let peer = [10, 0, 0, 1].into();
        let at = |line: &str| ours().client(peer, &headers("x-forwarded-for", &[line]));
        assert!(at(&",".repeat(MAX_HOPS - 1)).is_ok());
        assert_eq!(at(&",".repeat(MAX_HOPS)), Err(TooManyHops));
        assert!(at(&format!("{}1.2.3.4", " ".repeat(MAX_BYTES - 7))).is_ok());
        assert_eq!(at(&format!("{}1.2.3.4", " ".repeat(MAX_BYTES - 6))), Err(TooManyHops));
        let lines = headers("x-forwarded-for", &["1.1.1.1"; MAX_HOPS + 1]);
        assert_eq!(ours().client(peer, &lines), Err(TooManyHops), "lines count together");
    }

    /// C3
    #[test]
    fn what_is_no_address_ends_the_walk_at_the_last_trusted_peer() {
        for stop in ["unknown", "_hidden", "1.2.3", "010.1.1.1", "é", "1.2.3.4:x", "[::1", "a b"] {
            assert_eq!(client(&[&format!("6.6.6.6, {stop}, 10.0.0.2")]), "10.0.0.2", "{stop}");
            assert_eq!(client(&[&format!("6.6.6.6, {stop}")]), "10.0.0.1", "{stop}");
        }
        assert_eq!(client(&["1.2.3.4:80"]), "1.2.3.4");
        assert_eq!(client(&["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(client(&["1.2.3.4:80, [fd00::1]:443, 10.1.1.1:9"]), "1.2.3.4");
    }

    /// C4
    #[test]
    fn several_lines_are_one_list_in_order() {
        assert_eq!(client(&["6.6.6.6", "\t7.7.7.7 ,\t10.0.0.3", "10.0.0.2"]), "7.7.7.7");
        assert_eq!(client(&["6.6.6.6, 7.7.7.7", "", " , "]), "7.7.7.7", "nothing is no hop");
    }

    /// C6
    #[test]
    fn other_fields_are_not_read_unless_configured() {
        let mut all = HeaderMap::new();
        all.insert("forwarded", "for=\"[2001:db8::7]\"".parse().unwrap());
        for name in ["x-real-ip", "true-client-ip", "cf-connecting-ip"] {
            all.insert(name, "203.0.113.7".parse().unwrap());
        }
        let peer: IpAddr = [10, 0, 0, 1].into();
        let real = HeaderName::from_static("x-real-ip");

        assert_eq!(ours().client(peer, &all), Ok(peer));
        assert_eq!(ours().by_forwarded().client(peer, &all), Ok("2001:db8::7".parse().unwrap()));
        let by_real = ours().by_header(real.clone());
        assert_eq!(by_real.client(peer, &all), Ok([203, 0, 113, 7].into()));
        all.append(real, "203.0.113.8".parse().unwrap());
        assert_eq!(by_real.client(peer, &all), Ok(peer), "of two nobody knows which");
    }

    /// C7, C8
    #[test]
    fn every_spelling_of_an_address_is_one_address() {
        for spelling in ["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304", "[::FFFF:1.2.3.4]:1"] {
            assert_eq!(client(&[spelling]), "1.2.3.4", "{spelling}");
        }
        assert_eq!(client(&["fe80::1%eth0"]), "fe80::1");
        assert_eq!(client(&["[fe80::1%25eth0]:80"]), "fe80::1");
        assert_eq!(client(&["2001:db8::1.2.3.4"]), "2001:db8::102:304");
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let headers = headers("x-forwarded-for", &["203.0.113.9"]);
        assert_eq!(ours().client(mapped, &headers), Ok([203, 0, 113, 9].into()));
    }

    /// A text as it could stand in a header: addresses ours and others, separators, quotes, garbage.
    fn anything(rng: &mut Rng) -> String {
        let parts = [
            "10.0.0.2",
            "6.6.6.6",
            "fd00::1",
            "2001:db8::1",
            ", ",
            ",",
            "\"",
            "\\",
            ";",
            "for=",
            "unknown",
            "_x",
            "[",
            "]",
            ":80",
            "%eth0",
            " ",
            "\t",
            "=",
            "host=\"a",
            "é",
            "::ffff:10.0.0.9",
        ];
        (0..rng.below(12)).map(|_| rng.pick(&parts)).collect()
    }

    /// E40. What is prepended is followed by a comma or is a line of its own: a proxy appends its
    /// element so. The walk must have met somebody who is not ours, or garbage, before it: else
    /// what is prepended was said by a proxy that is believed.
    #[test]
    fn prepending_anything_changes_nothing() {
        let mut rng = Rng::new(40);
        let peer: IpAddr = [10, 0, 0, 1].into();
        let tails = [
            ("x-forwarded-for", "203.0.113.9", ours()),
            ("x-forwarded-for", "203.0.113.9, 10.0.0.2", ours()),
            ("x-forwarded-for", "garbage, fd00::2", ours()),
            (
                "forwarded",
                "for=203.0.113.9;host=\"a\", for=\"[fd00::2]:80\"",
                ours().by_forwarded(),
            ),
            ("forwarded", "for=_secret;proto=http", ours().by_forwarded()),
        ];
        for _ in 0..20_000 {
            let (name, tail, trust) = &tails[usize::try_from(rng.below(5)).unwrap()];
            let before = anything(&mut rng);
            let one = headers(name, &[&format!("{before},{tail}")]);
            let two = headers(name, &[&before, tail]);
            let alone = trust.client(peer, &headers(name, &[tail]));

            assert!(alone.is_ok());
            assert_eq!(trust.client(peer, &one), alone, "{before}");
            assert_eq!(trust.client(peer, &two), alone, "{before}");
        }
    }
}
