//! Commands with which clients ask a Redis about itself.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::reply::{self, RespVersion};
use super::session::{CommandWords, nth};
use crate::listener::Listener;
use crate::state::ServerState;

/// Every command, how many words it has (at least, if negative), and where its keys are.
const COMMANDS: &[(&str, i64, i64)] = &[
    ("auth", -2, 0),
    ("cl.throttle", -5, 1),
    ("client", -2, 0),
    ("command", -1, 0),
    ("del", -2, 1),
    ("echo", 2, 0),
    ("hello", -1, 0),
    ("info", -1, 0),
    ("ping", -1, 0),
    ("quit", -1, 0),
    ("reset", 1, 0),
    ("select", 2, 0),
    ("tg.check", -3, 0),
    ("tg.peek", -3, 0),
    ("tg.reset", -2, 0),
    ("unlink", -2, 1),
];

/// `COMMAND`, as client libraries use it to find out where keys are.
pub(super) fn command(words: CommandWords<'_>, out: &mut Vec<u8>) {
    let count = i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX);
    if words.1.len() == 1 {
        reply::array(COMMANDS.len(), out);
        return COMMANDS.iter().for_each(|row| describe(row, out));
    }
    match nth(words, 1).to_ascii_uppercase().as_slice() {
        b"COUNT" => reply::integer(count, out),
        // Nothing to say, which clients take for nothing to show.
        b"DOCS" => reply::array(0, out),
        b"INFO" => {
            reply::array(words.1.len().saturating_sub(2), out);
            for at in 2..words.1.len() {
                let name = nth(words, at);
                let found = COMMANDS.iter().find(|row| name.eq_ignore_ascii_case(row.0.as_bytes()));
                match found {
                    Some(row) => describe(row, out),
                    None => out.extend_from_slice(b"*-1\r\n"),
                }
            }
        }
        _ => reply::error("ERR unknown subcommand for 'command'", out),
    }
}

fn describe((name, arity, key): &(&str, i64, i64), out: &mut Vec<u8>) {
    reply::array(6, out);
    reply::bulk(name.as_bytes(), out);
    reply::integer(*arity, out);
    reply::array(1, out);
    reply::simple("fast", out);
    reply::integer(*key, out);
    reply::integer(*key, out);
    reply::integer(i64::from(*key > 0), out);
}

/// `HELLO`
pub(super) fn hello(id: u64, version: RespVersion, out: &mut Vec<u8>) {
    reply::map(7, version, out);
    let text = |(name, text): (&str, &str), out: &mut Vec<u8>| {
        reply::bulk(name.as_bytes(), out);
        reply::bulk(text.as_bytes(), out);
    };
    text(("server", "tollgate"), out);
    text(("version", env!("CARGO_PKG_VERSION")), out);
    let spoken = if version == RespVersion::Resp3 { 3 } else { 2 };
    for (name, number) in [("proto", spoken), ("id", i64::try_from(id).unwrap_or(i64::MAX))] {
        reply::bulk(name.as_bytes(), out);
        reply::integer(number, out);
    }
    text(("mode", "standalone"), out);
    text(("role", "master"), out);
    reply::bulk(b"modules", out);
    reply::array(0, out);
}

/// `INFO`: what fits into a page.
pub(super) fn info(server: &ServerState, version: RespVersion, out: &mut Vec<u8>) {
    let mut text = String::new();
    let connections = &server.connections[Listener::Resp];
    // Writing into a string does not fail.
    let _ = write!(
        text,
        "# Server\r\ntollgate_version:{}\r\nredis_mode:standalone\r\n\r\n# Clients\r\n\
         connected_clients:{}\r\nmaxclients:{}\r\n\r\n# Tollgate\r\nstore:{}\r\nrules_version:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        connections.open.load(Ordering::Relaxed),
        server.settings.max_connections,
        server.limiter.store().name(),
        server.limiter.rules().version(),
    );
    for (protocol, counts) in server.counts.protocols() {
        let [allowed, refused, degraded, errors] = counts;
        let protocol = protocol.name();
        let _ = write!(
            text,
            "{protocol}:allowed={allowed},refused={refused},degraded={degraded},errors={errors}\r\n"
        );
    }
    match version {
        RespVersion::Resp2 => reply::bulk(text.as_bytes(), out),
        RespVersion::Resp3 => {
            reply::head(b'=', text.len().saturating_add(4), out);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}
