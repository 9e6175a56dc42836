//! A call as it is sent: a script with its keys and arguments, packed into one command.
#![allow(clippy::arithmetic_side_effects, reason = "lengths of what is in memory")]

use std::borrow::Cow;
use std::ops::Range;

use super::resp::{self, MAX_FRAME, write_length, write_string};

use crate::script::{PreambleFields, Step};

/// A script, and its SHA-1 by which Redis knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// The SHA-1 of the text, in hexadecimal.
    pub(crate) sha: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, sha: sha1_smol::Sha1::from(text).digest().to_string() }
    }
}

/// Identifies a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ScriptId {
    /// Decides a batch.
    #[default]
    Batch,
    /// Reads and sets values.
    Values,
    /// A lock step.
    Lock(Step),
}

impl ScriptId {
    const fn preamble(self) -> PreambleFields {
        match self {
            Self::Batch | Self::Values => PreambleFields::Whole,
            Self::Lock(step) => step.preamble(),
        }
    }
}

/// One run of a script: `KEYS`, and the `ARGV` that follow the preamble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) script: ScriptId,
    pub(crate) keys: Keys<'a>,
    pub(crate) args: Vec<Vec<u8>>,
}

/// The keys of a call: two lists, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys<'a>(pub(crate) [Cow<'a, PackedStrings>; 2]);

impl Keys<'_> {
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|part| part.iter())
    }
}

impl<'a> FromIterator<&'a [u8]> for Keys<'_> {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(strings: I) -> Self {
        let mut all = PackedStrings::default();
        strings.into_iter().for_each(|string| all.push(string, &[]));
        Self([Cow::Owned(all), Cow::default()])
    }
}

/// Many short strings in one allocation, framed as they are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedStrings {
    bytes: Vec<u8>,
    /// The place of each string.
    spots: Vec<Range<usize>>,
}

impl PackedStrings {
    /// Adds a string that is given in two parts.
    pub(crate) fn push(&mut self, head: &[u8], tail: &[u8]) {
        let start = resp::write_parts(head, tail, &mut self.bytes);
        self.spots.push(start..self.bytes.len() - 2);
    }

    pub(crate) const fn len(&self) -> usize {
        self.spots.len()
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.spots[index].clone()]
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Empties the list and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.spots.clear();
    }
}

/// The arguments that the link puts before a call's own.
#[derive(Clone, Debug)]
pub(super) struct Preamble {
    /// `ARGV[1]`: the server's time in microseconds after which the call must do nothing; zero for
    /// never, while that time is not known.
    pub(super) not_after: u64,
    /// `ARGV[2]`: the id under which the script keeps its reply; empty when the call is sent only
    /// once.
    pub(super) id: String,
}

/// Later than any time that a script can count, for scripts that do not treat 0 as never.
const NEVER: u64 = 1 << 53;

/// The way a command names its script.
#[derive(Clone, Copy, Debug)]
pub(super) enum EvalForm {
    BySha,
    ByText,
}

impl Call<'_> {
    pub(super) fn pack(&self, script: &Script, form: EvalForm, preamble: &Preamble) -> Vec<u8> {
        let (command, body) = match form {
            EvalForm::BySha => ("EVALSHA", script.sha.as_str()),
            EvalForm::ByText => ("EVAL", script.text),
        };
        let not_after = match (preamble.not_after, self.script.preamble()) {
            (0, PreambleFields::Time) => NEVER.to_string(),
            (not_after, _) => not_after.to_string(),
        };
        let fields: &[&str] = match self.script.preamble() {
            PreambleFields::Whole => &[&not_after, &preamble.id],
            PreambleFields::Time => &[&not_after],
            PreambleFields::None => &[],
        };
        let Keys(parts) = &self.keys;
        let keys: usize = parts.iter().map(|part| part.bytes.len()).sum();
        let args: usize = self.args.iter().map(|arg| arg.len() + MAX_FRAME).sum();
        let mut out = Vec::with_capacity(keys + args + body.len() + 256);

        write_length(b'*', 3 + self.keys.len() + fields.len() + self.args.len(), &mut out);
        write_string(command.as_bytes(), &mut out);
        write_string(body.as_bytes(), &mut out);
        write_string(self.keys.len().to_string().as_bytes(), &mut out);
        for part in parts {
            out.extend_from_slice(&part.bytes);
        }
        for field in fields {
            write_string(field.as_bytes(), &mut out);
        }
        for arg in &self.args {
            write_string(arg, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_command_with_the_preamble_before_its_arguments() {
        let script = Script::new("return 1");
        let keys = [&b"a"[..], b""].into_iter().collect();
        let call = Call { keys, args: vec![b"\xff\r\n".into()], ..Call::default() };
        let preamble = Preamble { not_after: u64::MAX, id: "i".to_owned() };

        let packed = call.pack(&script, EvalForm::BySha, &preamble);

        let expected: &[u8] = b"*8\r\n$7\r\nEVALSHA\r\n$40\r\n\
            e0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n$1\r\n2\r\n$1\r\na\r\n$0\r\n\r\n\
            $20\r\n18446744073709551615\r\n$1\r\ni\r\n$3\r\n\xff\r\n\r\n";
        assert_eq!(packed, expected, "{}", packed.escape_ascii());
    }

    #[test]
    fn steps_on_locks_are_sent_only_what_they_look_at() {
        let script = Script::new("return 1");
        let packed = |step, not_after| {
            let preamble = Preamble { not_after, id: "i".to_owned() };
            let call = Call { script: ScriptId::Lock(step), ..Call::default() };
            let packed = call.pack(&script, EvalForm::ByText, &preamble);
            String::from_utf8(packed).unwrap()
        };
        let before =
            |words: usize| format!("*{words}\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n");

        assert_eq!(packed(Step::Release, 7), before(3));
        assert_eq!(packed(Step::Acquire, 7), before(4) + "$1\r\n7\r\n");
        assert_eq!(packed(Step::AcquireSimple, 0), before(4) + "$16\r\n9007199254740992\r\n");
        assert_eq!(packed(Step::Renew, 0), before(5) + "$1\r\n0\r\n$1\r\ni\r\n");
    }

    #[test]
    fn the_text_takes_the_place_of_its_sha() {
        let script = Script::new("return 1");
        let preamble = Preamble { not_after: 0, id: String::new() };

        let packed = Call::default().pack(&script, EvalForm::ByText, &preamble);

        let expected: &[u8] =
            b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n$1\r\n0\r\n$0\r\n\r\n";
        assert_eq!(packed, expected, "{}", packed.escape_ascii());
    }
}
