//! The URL of a Redis server.
//!
//! No message repeats any part of it: what looks like a port may be the second half of a password.

use std::borrow::Cow;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

use super::Address;
use crate::error::ConnectError;

const DEFAULT_PORT: u16 = 6379;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) address: Address,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) db: u32,
}

pub(super) fn parse(text: &str) -> Result<Parts, ConnectError> {
    let url = Url::parse(text).map_err(|error| {
        ConnectError::settings("the URL of redis does not parse").with_source(error)
    })?;
    if url.fragment().is_some() {
        // The `#insecure` of other clients, above all.
        return Err(ConnectError::settings("the URL of redis may have no fragment (#…)"));
    }
    match url.scheme() {
        "redis" | "valkey" => over_tcp(&url, |host, port| Address::Tcp { host, port }),
        "rediss" | "valkeys" if cfg!(feature = "tls") => {
            over_tcp(&url, |host, port| Address::Tls { host, port })
        }
        "rediss" | "valkeys" => Err(ConnectError::settings(
            "the URL of redis requires TLS, and this build lacks the feature `tls`",
        )),
        "unix" | "redis+unix" | "valkey+unix" => over_unix(&url),
        _ => Err(ConnectError::settings(
            "the URL of redis must begin with redis://, rediss:// or unix://",
        )),
    }
}

fn over_tcp(url: &Url, address: fn(String, u16) -> Address) -> Result<Parts, ConnectError> {
    let host = match url.host() {
        // `redis` is no scheme the URL standard knows, so a host is not decoded yet.
        Some(url::Host::Domain(name)) if !name.is_empty() => decode(name, "host")?,
        Some(url::Host::Ipv4(ip)) => ip.to_string(),
        Some(url::Host::Ipv6(ip)) => ip.to_string(),
        _ => return Err(ConnectError::settings("the URL of redis names no host")),
    };
    if url.query().is_some() {
        return Err(ConnectError::settings("the URL of redis may have no query (?…) over TCP"));
    }
    let user = Some(url.username()).filter(|name| !name.is_empty());
    Ok(Parts {
        address: address(host, url.port().unwrap_or(DEFAULT_PORT)),
        user: user.map(|name| decode(name, "user")).transpose()?,
        password: url.password().map(|word| decode(word, "password")).transpose()?,
        db: database(url.path().trim_matches('/'))?,
    })
}

fn over_unix(url: &Url) -> Result<Parts, ConnectError> {
    if url.host().is_some() || url.path().len() < 2 {
        return Err(ConnectError::settings(
            "the URL of redis names no path; a socket is written unix:///path/to/socket",
        ));
    }
    let path = PathBuf::from(decode(url.path(), "path")?);
    let mut parts = Parts { address: Address::Unix(path), user: None, password: None, db: 0 };
    for (name, value) in url.query_pairs() {
        match (&*name, value) {
            ("db", value) => parts.db = database(&value)?,
            ("user", value) => parts.user = Some(value.into_owned()),
            ("pass", value) => parts.password = Some(value.into_owned()),
            _ => {
                return Err(ConnectError::settings(
                    "the query of a unix URL of redis may only have db, user and pass",
                ));
            }
        }
    }
    Ok(parts)
}

fn database(text: &str) -> Result<u32, ConnectError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse()
        .map_err(|_| ConnectError::settings("the database in the URL of redis is not a number"))
}

fn decode(text: &str, what: &str) -> Result<String, ConnectError> {
    percent_decode_str(text).decode_utf8().map(Cow::into_owned).map_err(|_| {
        ConnectError::settings(format!("the {what} in the URL of redis is not valid UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn the_parts_of_a_url() {
        let cases = [
            ("redis://localhost", tcp("localhost", 6379), None, None, 0),
            ("redis://127.0.0.1:7000/", tcp("127.0.0.1", 7000), None, None, 0),
            ("redis://[::1]:7000/15", tcp("::1", 7000), None, None, 15),
            ("redis://:p%40%3A%2Bw+@h", tcp("h", 6379), None, Some("p@:+w+"), 0),
            ("valkey://bob:pw@h/3", tcp("h", 6379), Some("bob"), Some("pw"), 3),
            ("redis://bob@h", tcp("h", 6379), Some("bob"), None, 0),
            ("unix:///run/a%20b/s", Address::Unix("/run/a b/s".into()), None, None, 0),
            (
                "redis+unix:///s?db=2&user=u&pass=p%2B",
                Address::Unix("/s".into()),
                Some("u"),
                Some("p+"),
                2,
            ),
        ];
        for (text, address, user, password, db) in cases {
            let expected = Parts {
                address,
                user: user.map(Into::into),
                password: password.map(Into::into),
                db,
            };
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_without_being_repeated() {
        for text in [
            "",
            "hush",
            "http://u:hush@localhost",
            "redis://u:hush@",
            "redis://u:hush@localhost:99999",
            "redis://u:hush@localhost/hush",
            "redis://u:hush@localhost/-1",
            "redis://u:hush@localhost/#insecure",
            "redis://u:hush@localhost?protocol=hush",
            "redis://u:hu%ffsh@localhost",
            "unix://",
            "unix:///",
            "unix://hush/path",
            "unix:///s?password=hush",
            "unix:///s?db=hush",
        ] {
            let error = parse(text).expect_err(text);
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hu"), "{text}: {shown}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_second_s_asks_for_tls() {
        for text in ["rediss://h:1", "valkeys://h:1"] {
            let address = Address::Tls { host: "h".to_owned(), port: 1 };
            assert_eq!(parse(text).unwrap().address, address);
        }
    }
}
