//! Commands that ask the store: `TG.CHECK`, `TG.PEEK`, `TG.RESET`, `DEL`, and, on a remote store,
//! `CL.THROTTLE`.
//!
//! A question owns its words, so that it can wait while its connection reads on.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::{Admission, ResetError};
use tollgate::{Limit, Verdict};

use super::reply::{self, RespVersion};
use super::session::{CommandWords, answer_throttle, nth, read_ask, refusal};
use super::throttle::Throttle;
use crate::state::{ServerState, ceil_millis};
use crate::telemetry::counts::{InFlightRequest, Outcome, Protocol};
use crate::telemetry::refusals::reason;

/// A question to the store, with its words.
#[derive(Debug)]
pub(super) enum StoreCommand {
    /// `CL.THROTTLE`
    Throttle {
        /// The key.
        key: Box<[u8]>,
        /// The bucket.
        limit: Box<Limit>,
        /// Tokens to take.
        quantity: u64,
    },
    /// `TG.CHECK` and `TG.PEEK`
    Check {
        /// Set if it charges.
        charges: bool,
        /// Cost.
        cost: u64,
        /// The domain, and then names and values.
        words: Vec<Box<[u8]>>,
    },
    /// `TG.RESET`
    Reset {
        /// The domain, and then names and values.
        words: Vec<Box<[u8]>>,
    },
    /// `DEL`
    Delete {
        /// Keys of `CL.THROTTLE`.
        keys: Vec<Box<[u8]>>,
    },
}

impl StoreCommand {
    /// Reads a command that asks; its name is in capitals.
    ///
    /// # Errors
    ///
    /// With the text of the error reply.
    pub(super) fn read(command: &[u8], words: CommandWords<'_>) -> Result<Self, String> {
        let name = String::from_utf8_lossy(command).to_ascii_lowercase();
        let count = words.1.len();
        let wrong = || Err(format!("ERR wrong number of arguments for '{name}' command"));
        let rest = |from: usize| {
            let range = (1..count).filter(move |at| *at == 1 || *at >= from);
            range.map(|at| nth(words, at).into()).collect::<Vec<Box<[u8]>>>()
        };
        match command {
            b"DEL" | b"UNLINK" if count >= 2 => {
                Ok(Self::Delete { keys: (1..count).map(|at| nth(words, at).into()).collect() })
            }
            b"TG.RESET" if count >= 2 && count.is_multiple_of(2) => {
                Ok(Self::Reset { words: rest(2) })
            }
            b"TG.CHECK" | b"TG.PEEK" if count >= 3 && !count.is_multiple_of(2) => {
                let cost = std::str::from_utf8(nth(words, 2)).ok();
                let Some(cost) = cost.and_then(|cost| cost.parse().ok()) else {
                    return Err("ERR the cost is not a whole number of at least 0".to_owned());
                };
                let charges = command == b"TG.CHECK";
                Ok(Self::Check { charges, cost, words: rest(3) })
            }
            _ => wrong(),
        }
    }

    /// Asks, and writes the reply.
    pub(super) async fn answer(
        self,
        server: &Arc<ServerState>,
        version: RespVersion,
        out: &mut Vec<u8>,
    ) {
        if let Err(wrong) = self.try_answer(server, version, out).await {
            reply::error(&wrong, out);
        }
    }

    async fn try_answer(
        self,
        server: &ServerState,
        version: RespVersion,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        match self {
            Self::Throttle { key, limit, quantity } => {
                return throttle(server, &key, &limit, quantity, out).await;
            }
            Self::Check { charges: true, cost, words } => {
                let in_flight = InFlightRequest::new(&server.counts, Protocol::Resp);
                let ask = read_words(&words, cost)?;
                if server.refuses_all() {
                    return Err("UNAVAILABLE no rules have been loaded yet".to_owned());
                }
                let admission = server.limiter.admit(&ask).await;
                in_flight.end();
                server.record(Protocol::Resp, &ask, &admission);
                ruled(&admission, version, out);
            }
            Self::Check { charges: false, cost, words } => {
                ruled(&server.limiter.peek(&read_words(&words, cost)?).await, version, out);
            }
            Self::Reset { words } => {
                let reset = server.limiter.reset(&read_words(&words, 1)?).await;
                let count = reset.map_err(|error| format!("TRYAGAIN {error}"))?;
                reply::integer(i64::try_from(count).unwrap_or(i64::MAX), out);
            }
            Self::Delete { keys } => {
                let mut gone = 0_i64;
                for key in &keys {
                    match server.limiter.reset_throttle(key).await {
                        Ok(was) => gone = gone.saturating_add(i64::from(was)),
                        // No key of this length was ever charged.
                        Err(ResetError::Key(_)) => {}
                        Err(error) => return Err(format!("TRYAGAIN {error}")),
                    }
                }
                reply::integer(gone, out);
            }
        }
        Ok(())
    }
}

fn read_words(words: &[Box<[u8]>], cost: u64) -> Result<tollgate::Ask<'_>, String> {
    let domain = words.first().map(|word| &**word).unwrap_or_default();
    let (pairs, _) = words.get(1..).unwrap_or_default().as_chunks::<2>();
    read_ask(domain, cost, pairs.iter().map(|[name, value]| (&**name, &**value)))
}

async fn throttle(
    server: &ServerState,
    key: &[u8],
    limit: &Limit,
    quantity: u64,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let in_flight = InFlightRequest::new(&server.counts, Protocol::Throttle);
    let admission = server.limiter.throttle(key, limit, quantity).await;
    let admission = admission.map_err(|error| format!("ERR {error}"))?;
    in_flight.end().add(Protocol::Throttle, Outcome::of(&admission), 1);
    answer_throttle(&Throttle { limit, quantity }, &admission, out)?;
    if !admission.passes() {
        server.record_refusal(refusal(key, &admission), 1);
    }
    Ok(())
}

/// Writes an admission as pairs of a name and a value.
fn ruled(admission: &Admission, version: RespVersion, out: &mut Vec<u8>) {
    let ruling = admission.ruling();
    let millis = |duration: Duration| i64::try_from(ceil_millis(duration)).unwrap_or(i64::MAX);
    let limits: SmallVec<[_; 4]> =
        ruling.findings().filter(|finding| finding.limit.is_some()).collect();
    let remaining = limits.iter().map(|finding| finding.decision.remaining).min();
    let reset = limits.iter().map(|finding| finding.decision.reset_after).max();
    reply::map(7, version, out);
    let mut number = |name: &str, number: i64| {
        reply::bulk(name.as_bytes(), out);
        reply::integer(number, out);
    };
    number("allowed", i64::from(matches!(admission.verdict(), Verdict::Allow | Verdict::Wait(_))));
    number("remaining", remaining.map_or(-1, |left| i64::try_from(left).unwrap_or(i64::MAX)));
    number("retry_after_ms", admission.retry_after().map_or(-1, millis));
    number("reset_after_ms", reset.map_or(0, millis));
    number("rules_version", i64::try_from(ruling.version()).unwrap_or(i64::MAX));
    reply::bulk(b"reason", out);
    let why = if admission.outage().is_some() { "outage" } else { reason(ruling.reason()) };
    reply::bulk(why.as_bytes(), out);
    reply::bulk(b"rule", out);
    match ruling.refusing().and_then(|finding| finding.rule) {
        Some(rule) => reply::bulk(rule.name().as_bytes(), out),
        None => reply::null(version, out),
    }
}
