//! One client's session, and its commands.
//!
//! A command is answered at once, into the buffer of replies. On a remote store, commands that ask
//! the store are handed back to be awaited; all others are still answered at once.

#![expect(clippy::arithmetic_side_effects, reason = "numbers of words of a command: 256 at most")]

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;
use tollgate::{Admission, Ask};

use super::reply::{self, RespVersion};
use super::store_command::StoreCommand;
use super::throttle::{LimitCache, Throttle};
use crate::listener::Listener;
use crate::state::ServerState;
use crate::store::{AnyStore, at_once};
use crate::telemetry::counts::{Outcome, Protocol};
use crate::telemetry::refusals::{RefusalRecord, cut};

/// State of one client.
#[derive(Debug)]
pub(super) struct Session {
    /// Number of the connection.
    pub(super) id: u64,
    /// Address, if known.
    peer: Option<SocketAddr>,
    version: RespVersion,
    name: Vec<u8>,
    /// True if it needs no password or has sent the right one.
    authenticated: bool,
    /// Set if it may refund and reset.
    trusted: bool,
}

/// Buffers and counts that the commands of a thread share. Only the limits outlive a pipeline.
#[derive(Debug, Default)]
pub(super) struct ThreadScratch {
    /// Limits made lately.
    pub(super) limits: LimitCache,
    /// Added to the shared counts when the pipeline ends: an update for each command would make threads
    /// wait.
    allowed: u64,
    refused: u64,
    /// One of the refusals of the pipeline, which stands for all of them.
    shown: Option<Box<RefusalRecord>>,
}

/// Next step after a command.
#[derive(Debug)]
pub(super) enum AfterCommand {
    /// It was answered.
    Answered,
    /// It was answered, and the connection ends.
    Close,
    /// The store has to be asked, elsewhere.
    Ask(StoreCommand),
}

/// A command's words.
pub(super) type CommandWords<'a> = (&'a [u8], &'a [Range<usize>]);

/// The longest name of a client: as long as a host's.
const MAX_NAME: usize = 256;

impl Session {
    /// A client that has just connected.
    pub(super) fn new(
        id: u64,
        peer: Option<SocketAddr>,
        server: &ServerState,
        local: bool,
    ) -> Self {
        let authenticated = server.settings.api_token.is_none();
        let trusted = local || server.settings.api_token.is_some();
        Self { id, peer, version: RespVersion::Resp2, name: Vec::new(), authenticated, trusted }
    }

    /// Answers one command.
    #[inline]
    pub(super) fn answer(
        &mut self,
        words: CommandWords<'_>,
        server: &Arc<ServerState>,
        scratch: &mut ThreadScratch,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        if words.1.is_empty() {
            return AfterCommand::Answered;
        }
        let command = nth(words, 0);
        if command.eq_ignore_ascii_case(b"CL.THROTTLE") && self.authenticated {
            return throttle(words, server, scratch, out).unwrap_or_else(|wrong| {
                server.counts.add(Protocol::Throttle, Outcome::Error, 1);
                reply::error(&wrong, out);
                AfterCommand::Answered
            });
        }
        self.other(command, words, server, out)
    }

    #[inline(never)]
    fn other(
        &mut self,
        command: &[u8],
        words: CommandWords<'_>,
        server: &Arc<ServerState>,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let mut name = [0_u8; 16];
        let Some(upper) = name.get_mut(..command.len()) else {
            return unknown(command, out);
        };
        upper.copy_from_slice(command);
        upper.make_ascii_uppercase();
        match &*upper {
            b"QUIT" => {
                reply::simple("OK", out);
                return AfterCommand::Close;
            }
            // A web page had a browser send this, and commands in the body of it, as it may to any port.
            b"POST" | b"HOST:" => return AfterCommand::Close,
            b"HELLO" => self.hello(words, server, out),
            b"AUTH" => self.auth(words, server, out),
            b"RESET" => {
                *self = Self::new(self.id, self.peer, server, self.trusted);
                reply::simple("RESET", out);
            }
            _ if !self.authenticated => reply::error("NOAUTH Authentication required.", out),
            b"PING" => match words.1.len() {
                1 => reply::simple("PONG", out),
                2 => reply::bulk(nth(words, 1), out),
                _ => arity("ping", out),
            },
            b"ECHO" if words.1.len() == 2 => reply::bulk(nth(words, 1), out),
            b"SELECT" => match (words.1.len(), nth(words, 1)) {
                (2, b"0") => reply::simple("OK", out),
                (2, _) => reply::error("ERR DB index is out of range", out),
                _ => arity("select", out),
            },
            b"CLIENT" => self.client(words, out),
            b"COMMAND" => super::connection_commands::command(words, out),
            b"INFO" => super::connection_commands::info(server, self.version, out),
            b"DEL" | b"UNLINK" | b"TG.CHECK" | b"TG.PEEK" | b"TG.RESET" => {
                return self.question(upper, words, server, out);
            }
            b"ECHO" => arity("echo", out),
            _ => return unknown(command, out),
        }
        AfterCommand::Answered
    }

    /// Commands that ask the store: at once if it is in this process.
    fn question(
        &self,
        command: &[u8],
        words: CommandWords<'_>,
        server: &Arc<ServerState>,
        out: &mut Vec<u8>,
    ) -> AfterCommand {
        let mutates = !matches!(command, b"TG.CHECK" | b"TG.PEEK");
        if mutates && !self.trusted {
            reply::error("NOPERM set --api-token to allow this off loopback", out);
            return AfterCommand::Answered;
        }
        match StoreCommand::read(command, words) {
            Ok(question) if matches!(server.limiter.store(), AnyStore::Redis(..)) => {
                AfterCommand::Ask(question)
            }
            Ok(question) => {
                at_once(question.answer(server, self.version, out));
                AfterCommand::Answered
            }
            Err(wrong) => {
                if command == b"TG.CHECK" {
                    server.counts.add(Protocol::Resp, Outcome::Error, 1);
                }
                reply::error(&wrong, out);
                AfterCommand::Answered
            }
        }
    }

    /// The protocol in which this client is answered.
    pub(super) const fn version(&self) -> RespVersion {
        self.version
    }

    fn hello(&mut self, words: CommandWords<'_>, server: &ServerState, out: &mut Vec<u8>) {
        let mut version = self.version;
        let mut at = 1_usize;
        if words.1.len() > 1 {
            version = match nth(words, 1) {
                b"2" => RespVersion::Resp2,
                b"3" => RespVersion::Resp3,
                _ => return reply::error("NOPROTO unsupported protocol version", out),
            };
            at = 2;
        }
        while at < words.1.len() {
            let option = nth(words, at);
            if option.eq_ignore_ascii_case(b"AUTH") && at + 2 < words.1.len() {
                let (user, password) = (at + 1, at + 2);
                if !self.log_in(nth(words, user), nth(words, password), server) {
                    return reply::error(WRONG_PASSWORD, out);
                }
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && at + 1 < words.1.len() {
                self.rename(nth(words, at + 1));
                at += 2;
            } else {
                return reply::error("ERR syntax error in HELLO", out);
            }
        }
        if !self.authenticated {
            return reply::error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used",
                out,
            );
        }
        self.version = version;
        super::connection_commands::hello(self.id, self.version, out);
    }

    fn auth(&mut self, words: CommandWords<'_>, server: &ServerState, out: &mut Vec<u8>) {
        if server.settings.api_token.is_none() {
            return reply::error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
                out,
            );
        }
        let right = match words.1.len() {
            2 => self.log_in(USER, nth(words, 1), server),
            3 => self.log_in(nth(words, 1), nth(words, 2), server),
            _ => return arity("auth", out),
        };
        if right {
            reply::simple("OK", out);
        } else {
            reply::error(WRONG_PASSWORD, out);
        }
    }

    fn log_in(&mut self, user: &[u8], password: &[u8], server: &ServerState) -> bool {
        let token = server.settings.api_token.as_ref();
        let right = token.is_none_or(|token| token.matches(password) && user == USER);
        if !right {
            server.failed_logins.record(Listener::Resp, self.peer, None);
        }
        self.authenticated |= right;
        right
    }

    fn client(&mut self, words: CommandWords<'_>, out: &mut Vec<u8>) {
        let sub = nth(words, 1).to_ascii_uppercase();
        match (sub.as_slice(), words.1.len()) {
            (b"SETNAME", 3) => {
                self.rename(nth(words, 2));
                reply::simple("OK", out);
            }
            (b"GETNAME", 2) => reply::bulk(&self.name, out),
            (b"ID", 2) => reply::integer(i64::try_from(self.id).unwrap_or(i64::MAX), out),
            (b"SETINFO", 4) | (b"NO-EVICT" | b"NO-TOUCH", 3) => reply::simple("OK", out),
            _ => reply::error(
                "ERR unknown subcommand or wrong number of arguments for 'client'",
                out,
            ),
        }
    }

    fn rename(&mut self, name: &[u8]) {
        self.name = name.get(..name.len().min(MAX_NAME)).unwrap_or_default().to_vec();
    }
}

/// The only user there is.
const USER: &[u8] = b"default";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `CL.THROTTLE`, on the thread that read it if the store is here.
#[inline]
fn throttle(
    words: CommandWords<'_>,
    server: &ServerState,
    scratch: &mut ThreadScratch,
    out: &mut Vec<u8>,
) -> Result<AfterCommand, String> {
    let key = nth(words, 1);
    let numbers = (2..words.1.len()).map(|at| nth(words, at));
    let ThreadScratch { limits, allowed, refused, shown } = scratch;
    let throttle = Throttle::read(numbers, limits)?;
    let decided = server.limiter.throttle_now(key, throttle.limit, throttle.quantity);
    let admission = match &decided {
        Ok(Some(admission)) => admission,
        Ok(None) => {
            return Ok(AfterCommand::Ask(StoreCommand::Throttle {
                key: key.into(),
                limit: Box::new(*throttle.limit),
                quantity: throttle.quantity,
            }));
        }
        Err(error) => return Err(format!("ERR {error}")),
    };
    answer_throttle(&throttle, admission, out)?;
    if admission.passes() {
        *allowed = allowed.wrapping_add(1);
    } else {
        *refused = refused.wrapping_add(1);
        shown.get_or_insert_with(|| Box::new(refusal(key, admission)));
    }
    Ok(AfterCommand::Answered)
}

/// Writes the reply to a `CL.THROTTLE`.
pub(super) fn answer_throttle(
    throttle: &Throttle<'_>,
    admission: &Admission,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let finding = admission.ruling().findings().next();
    let finding = finding.ok_or("TRYAGAIN the store did not answer")?;
    throttle.answer(&finding.decision, out);
    Ok(())
}

/// Record of a refused `CL.THROTTLE`.
pub(super) fn refusal(key: &[u8], admission: &Admission) -> RefusalRecord {
    RefusalRecord {
        at_us: admission.ruling().at().as_micros(),
        protocol: Protocol::Throttle.name(),
        domain: String::new(),
        reason: "limits",
        rule: Some("CL.THROTTLE".to_owned()),
        limit: None,
        key: cut(&key.escape_ascii().to_string()),
        retry_after_ms: admission.retry_after().map(crate::state::ceil_millis),
        rules_version: 0,
    }
}

impl ThreadScratch {
    /// Counts the decisions of the pipeline, with the time since it was read.
    #[inline]
    pub(super) fn settle(&mut self, server: &ServerState, began: Instant) {
        let decided = self.allowed.wrapping_add(self.refused);
        if decided > 0 {
            server.counts.record_latency(Protocol::Throttle, began, decided);
        }
        if self.allowed > 0 {
            server.counts.add(Protocol::Throttle, Outcome::Allowed, self.allowed);
            self.allowed = 0;
        }
        if self.refused > 0 {
            server.counts.add(Protocol::Throttle, Outcome::Refused, self.refused);
            if let Some(shown) = self.shown.take() {
                server.record_refusal(*shown, self.refused);
            }
            self.refused = 0;
        }
    }
}

/// The word at this place, or an empty one.
pub(super) fn nth<'a>((input, args): CommandWords<'a>, at: usize) -> &'a [u8] {
    args.get(at).and_then(|range| input.get(range.clone())).unwrap_or_default()
}

pub(super) fn arity(command: &str, out: &mut Vec<u8>) {
    reply::error(&format!("ERR wrong number of arguments for '{command}' command"), out);
}

fn unknown(command: &[u8], out: &mut Vec<u8>) -> AfterCommand {
    let command = command.get(..command.len().min(64)).unwrap_or_default();
    reply::error(&format!("ERR unknown command '{}'", command.escape_ascii()), out);
    AfterCommand::Answered
}

/// The ask of `domain cost name value …`, or the error.
pub(super) fn read_ask<'a>(
    domain: &'a [u8],
    cost: u64,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Ask<'a>, String> {
    let text = |bytes: &'a [u8], what: &str| {
        std::str::from_utf8(bytes).map_err(|_| format!("ERR the {what} is not UTF-8"))
    };
    let mut ask = Ask::new(text(domain, "domain")?).cost(cost);
    for (name, value) in pairs {
        let name = text(name, "attribute's name")?;
        ask.push(name, value).map_err(|error| format!("ERR {}: {error}", name.escape_default()))?;
    }
    Ok(ask)
}
