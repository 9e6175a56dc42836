//! The outcome of a script: a reply, or the reason there is none.

use tollgate_core::StoreError;

use super::command::ScriptId;
use super::resp::{ErrorReply, Value};
use crate::error::Cause;

/// The reply of a script: the server's time, or 0 if the script did not read it, then strings or nil. A
/// batch replies with one string that begins with the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) now: u64,
    pub(crate) values: Vec<Option<Vec<u8>>>,
}

/// The outcome of one run of a script.
#[derive(Debug, PartialEq)]
pub(super) enum ScriptOutcome {
    Reply(Reply),
    /// The script came after `not_after` and did nothing.
    Late,
    /// Redis does not know the script by its SHA.
    NoScript,
    /// Redis, or the script, refused.
    Refusal(ErrorReply),
    /// No reply of this script. Nothing that follows on this connection can be trusted.
    Unexpected,
}

impl ScriptOutcome {
    /// Reads the reply to a run of this script; `None` if the connection ended before it.
    pub(super) fn to(script: ScriptId, value: Option<Value>) -> Self {
        let Some(value) = value else { return Self::Unexpected };
        let reply = match value {
            Value::String(digits) if matches!(script, ScriptId::Lock(step) if step.is_terse()) => {
                parse(&digits).map(|now| Reply { now, values: Vec::new() })
            }
            Value::String(bytes) if script == ScriptId::Batch => Self::read_batch(bytes),
            value => return Self::read(value),
        };
        reply.map_or(Self::Unexpected, Self::Reply)
    }

    /// Reads a time, a count, three lengths, and at least as many bytes.
    fn read_batch(mut bytes: Vec<u8>) -> Option<Reply> {
        let (now, rest) = bytes.split_first_chunk()?;
        let now = u64::from_le_bytes(*now);
        let ([_, lengths @ ..], _) = rest.split_first_chunk::<16>()?.0.as_chunks() else {
            return None;
        };
        let least =
            lengths.iter().map(|length| u64::from(u32::from_le_bytes(*length))).sum::<u64>();
        if u64::try_from(bytes.len()).ok()? < least.checked_add(24)? {
            return None;
        }
        bytes.drain(..8);
        Some(Reply { now, values: vec![Some(bytes)] })
    }

    fn read(value: Value) -> Self {
        let items = match value {
            Value::Array(items) => items,
            Value::Error(error) if error.code == "NOSCRIPT" => return Self::NoScript,
            Value::Error(error) => return Self::Refusal(error),
            _ => return Self::Unexpected,
        };
        let mut items = items.into_iter();
        let now = match items.next() {
            Some(Value::Status(text) | Value::String(text)) if text == b"late" => {
                return Self::Late;
            }
            Some(Value::String(digits)) => parse(&digits),
            _ => None,
        };
        let values = items
            .map(|item| match item {
                Value::String(bytes) => Some(Some(bytes)),
                Value::Nil => Some(None),
                _ => None,
            })
            .collect::<Option<Vec<_>>>();
        match (now, values) {
            (Some(now), Some(values)) => Self::Reply(Reply { now, values }),
            _ => Self::Unexpected,
        }
    }
}

/// Parses the server's time.
pub(super) fn parse(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl ErrorReply {
    /// Returns whether Redis answers everything like this until it has finished something else.
    pub(super) fn is_indisposed(&self) -> bool {
        matches!(&*self.code, "BUSY" | "LOADING" | "MASTERDOWN")
    }

    /// Returns the error for a caller. Nothing was charged, whatever the code:
    ///
    /// - NOPERM, LOADING, BUSY, NOAUTH, MOVED and the like answer in place of running the script.
    /// - OOM, READONLY, MISCONF and NOREPLICAS may refuse the script's first write, but no later
    ///   one: Redis lets a script that has written go on.
    ///
    /// But ERR may come from within the script. A script writes last, with commands that cannot
    /// fail, so this should not happen after a write; should it happen all the same, or should an
    /// ACL user lack some of these commands, something may have been charged.
    ///
    /// WRONGTYPE means that the key belongs to something else.
    pub(super) fn into_error(self) -> StoreError {
        let (foreign, failed) = (self.code == "WRONGTYPE", self.code == "ERR");
        let cause = self.into_cause();
        if foreign {
            cause.corrupt()
        } else if failed {
            cause.timeout()
        } else {
            cause.unavailable()
        }
    }

    pub(super) fn into_cause(self) -> Cause {
        Cause::Answer { code: self.code, detail: self.detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Step;

    fn bulk(text: &str) -> Value {
        Value::String(text.into())
    }

    fn outcome(script: ScriptId, reply: impl Into<Vec<u8>>) -> ScriptOutcome {
        ScriptOutcome::to(script, Some(Value::String(reply.into())))
    }

    #[test]
    fn the_time_and_then_the_values() {
        let value = Value::Array(vec![bulk("1700000000000001"), bulk("x"), Value::Nil]);
        let reply = Reply { now: 1_700_000_000_000_001, values: vec![Some(b"x".into()), None] };
        assert_eq!(ScriptOutcome::read(value), ScriptOutcome::Reply(reply));
    }

    #[test]
    fn a_time_alone_is_a_reply_of_steps_that_may_be_terse() {
        let acquire = ScriptId::Lock(Step::Acquire);
        let reply = Reply { now: 7, values: vec![] };
        assert_eq!(outcome(acquire, "7"), ScriptOutcome::Reply(reply));
        assert_eq!(outcome(acquire, "x"), ScriptOutcome::Unexpected);
        for script in [ScriptId::Batch, ScriptId::Values, ScriptId::Lock(Step::Renew)] {
            assert_eq!(outcome(script, "7"), ScriptOutcome::Unexpected, "{script:?}");
        }
    }

    #[test]
    fn a_batch_says_all_in_one_string_of_the_length_that_it_tells() {
        let said = |lengths: [u32; 3], rest: &[u8]| {
            let lengths = lengths.iter().flat_map(|length| length.to_le_bytes());
            let head = 7_u64.to_le_bytes().into_iter().chain([0; 4]).chain(lengths);
            head.chain(rest.iter().copied()).collect::<Vec<u8>>()
        };
        let whole = said([1, 0, 4], b"pLLLLvalue");
        let reply = Reply { now: 7, values: vec![Some(whole[8..].to_vec())] };
        assert_eq!(outcome(ScriptId::Batch, whole), ScriptOutcome::Reply(reply));
        let huge = said([u32::MAX; 3], b"p");
        for cut in [said([1, 0, 4], b"pLLL"), said([0; 3], b"")[..23].to_vec(), huge] {
            assert_eq!(outcome(ScriptId::Batch, cut), ScriptOutcome::Unexpected);
        }
    }

    #[test]
    fn late_is_a_status_or_a_string() {
        let status = Value::Status(b"late".into());
        assert_eq!(ScriptOutcome::read(Value::Array(vec![status])), ScriptOutcome::Late);
        assert_eq!(ScriptOutcome::read(Value::Array(vec![bulk("late")])), ScriptOutcome::Late);
    }

    #[test]
    fn an_answer_to_another_question_is_foreign() {
        for value in [
            Value::Nil,
            Value::Number(1),
            Value::Status(b"PONG".into()),
            Value::Array(vec![]),
            Value::Array(vec![bulk("-1")]),
            Value::Array(vec![bulk("18446744073709551616")]),
            Value::Array(vec![Value::Number(1)]),
            Value::Array(vec![bulk("1"), Value::Array(vec![])]),
        ] {
            assert_eq!(ScriptOutcome::read(value.clone()), ScriptOutcome::Unexpected, "{value:?}");
        }
    }
}
