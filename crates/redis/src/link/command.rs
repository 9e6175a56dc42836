//! What is sent: a script with its keys and arguments, packed once into one command.

use std::fmt::Write;

use redis::Cmd;

/// A script and the name Redis knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// The SHA-1 of the text, in hexadecimal.
    pub(crate) sha: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// Which script is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Which {
    /// The one that decides a batch.
    #[default]
    Batch,
    /// The one that keeps values.
    Values,
}

/// One run of a script: `KEYS` and, from `ARGV[3]` on, `ARGV`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) which: Which,
    pub(crate) keys: Strings,
    pub(crate) args: Vec<Vec<u8>>,
}

/// Many short strings in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Strings {
    pub(crate) fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| self.bytes.get(*start..*end).unwrap_or(&[]))
    }
}

impl<'a> FromIterator<&'a [u8]> for Strings {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string));
        all
    }
}

/// What the link puts before a call's own arguments.
#[derive(Clone, Debug)]
pub(super) struct Preamble {
    /// `ARGV[1]`: the server's time in microseconds after which the call must do nothing; zero for
    /// never, while that time is not known.
    pub(super) not_after: u64,
    /// `ARGV[2]`: under which the script keeps its reply, or nothing when the call is sent only once.
    pub(super) id: String,
}

/// How the script is named in a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    BySha,
    ByText,
}

impl Call {
    pub(super) fn pack(&self, script: &Script, form: Form, preamble: &Preamble) -> Cmd {
        let (command, body) = match form {
            Form::BySha => ("EVALSHA", script.sha.as_str()),
            Form::ByText => ("EVAL", script.text),
        };
        let mut number = String::with_capacity(20);
        let args = self.args.iter().fold(0_usize, |sum, arg| sum.saturating_add(arg.len()));
        let own = self.keys.bytes.len().saturating_add(args);
        let size = own.saturating_add(body.len()).saturating_add(96);
        let count = self.keys.len().saturating_add(self.args.len()).saturating_add(5);
        let mut cmd = Cmd::with_capacity(count, size);

        cmd.arg(command).arg(body).arg(decimal(&mut number, self.keys.len()));
        for key in self.keys.iter() {
            cmd.arg(key);
        }
        cmd.arg(decimal(&mut number, preamble.not_after)).arg(preamble.id.as_str());
        for arg in &self.args {
            cmd.arg(arg.as_slice());
        }
        cmd
    }
}

fn decimal(buffer: &mut String, number: impl std::fmt::Display) -> &str {
    buffer.clear();
    let _ = write!(buffer, "{number}"); // Writing to a string cannot fail.
    buffer
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

        let packed = call.pack(&script, Form::BySha, &preamble).get_packed_command();

        let expected: &[u8] = b"*8\r\n$7\r\nEVALSHA\r\n$40\r\n\
            e0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n$1\r\n2\r\n$1\r\na\r\n$0\r\n\r\n\
            $20\r\n18446744073709551615\r\n$1\r\ni\r\n$3\r\n\xff\r\n\r\n";
        assert_eq!(packed, expected, "{}", packed.escape_ascii());
    }

    #[test]
    fn the_text_takes_the_place_of_its_sha() {
        let script = Script::new("return 1");
        let preamble = Preamble { not_after: 0, id: String::new() };

        let packed = Call::default().pack(&script, Form::ByText, &preamble).get_packed_command();

        let expected: &[u8] =
            b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n$1\r\n0\r\n$0\r\n\r\n";
        assert_eq!(packed, expected, "{}", packed.escape_ascii());
    }
}
