//! The server's product and version, and the known vulnerabilities of that version.

use std::fmt;

use super::field;

/// The first releases without CVE-2025-49844 and its siblings, by branch, and the first branch that
/// never had them. A branch that is not named, such as 7.0, was given up before they were found.
const REDIS: Fixes = Fixes {
    releases: &[[6, 2, 20], [7, 2, 11], [7, 4, 6], [8, 0, 4], [8, 2, 2]],
    clean_from: [8, 3, 0],
};
const VALKEY: Fixes =
    Fixes { releases: &[[7, 2, 11], [8, 0, 6], [8, 1, 4]], clean_from: [9, 0, 0] };

struct Fixes {
    releases: &'static [Version],
    clean_from: Version,
}

type Version = [u32; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    product: Product,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    Redis,
    Valkey,
    /// A server that is compatible with Redis and gives the version it is compatible with. The
    /// vulnerabilities of its own interpreter are not ours to judge.
    Other,
}

impl Server {
    /// Reads `INFO server`. Returns `None` when it gives no version.
    pub(super) fn read(info: &str) -> Option<Self> {
        let version = |name| field(info, name).and_then(parse);
        // Valkey gives a `redis_version` too, the last one it is compatible with.
        if let Some(version) = version("valkey_version") {
            return Some(Self { product: Product::Valkey, version });
        }
        let other = field(info, "dragonfly_version").is_some();
        let product = if other { Product::Other } else { Product::Redis };
        Some(Self { product, version: version("redis_version")? })
    }

    pub(super) fn is_too_old(self) -> bool {
        self.version < [6, 2, 0]
    }

    pub(super) fn is_vulnerable(self) -> bool {
        let Fixes { releases, clean_from } = match self.product {
            Product::Redis => REDIS,
            Product::Valkey => VALKEY,
            Product::Other => return false,
        };
        let [major, minor, _] = self.version;
        let branch = releases.iter().find(|[x, y, _]| (*x, *y) == (major, minor));
        self.version < *branch.unwrap_or(&clean_from)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        let name = match self.product {
            Product::Redis => "redis",
            Product::Valkey => "valkey",
            Product::Other => "a server compatible with redis",
        };
        write!(f, "{name} {major}.{minor}.{patch}")
    }
}

/// Parses up to three numbers; anything after them, such as `-rc1`, is ignored.
fn parse(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    let major = numbers.next()?;
    Some([major, numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(version: &str) -> Server {
        Server::read(&format!("# Server\r\nredis_version:{version}\r\nos:Linux\r\n")).unwrap()
    }

    fn valkey(version: &str) -> Server {
        let info = format!("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:{version}");
        Server::read(&info).unwrap()
    }

    #[test]
    fn holes_are_known_by_branch() {
        for version in ["6.2.19", "7.0.15", "7.0.99", "7.2.10", "7.4.5", "8.0.3", "8.1.9", "8.2.1"]
        {
            assert!(redis(version).is_vulnerable(), "{version}");
        }
        for version in ["6.2.20", "7.2.11", "7.4.6", "8.0.4", "8.2.2", "8.4.0", "255.255.255"] {
            assert!(!redis(version).is_vulnerable(), "{version}");
        }
        for version in ["7.2.10", "8.0.5", "8.1.3"] {
            assert!(valkey(version).is_vulnerable(), "{version}");
        }
        for version in ["7.2.11", "8.0.6", "8.1.4", "9.0.0"] {
            assert!(!valkey(version).is_vulnerable(), "{version}");
        }
    }

    #[test]
    fn old_is_before_6_2() {
        assert!(redis("6.0.20").is_too_old());
        assert!(redis("5").is_too_old());
        assert!(!redis("6.2.0").is_too_old());
        assert!(!redis("6.2-rc1").is_too_old());
        assert!(!valkey("7.2.5").is_too_old());
    }

    #[test]
    fn a_server_may_hide_its_version() {
        assert_eq!(Server::read(""), None);
        assert_eq!(Server::read("redis_version:\r\n"), None);
    }

    #[test]
    fn somebody_elses_interpreter_is_not_judged() {
        let info = "redis_version:7.0.0\r\ndragonfly_version:df-v1.0.0\r\n";
        assert!(!Server::read(info).unwrap().is_vulnerable());
    }
}
