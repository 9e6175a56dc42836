//! JSON into a tree: RFC 8259 to the letter, with places, and no key twice.
//!
//! Written by hand because the parsers at hand lose one of the three things a rule file needs:
//! the place of a value, the second of two equal keys, or the digits of a number.

use std::borrow::Cow;

use super::node::{Budget, Entry, LineIndex, Node, Value, check_keys};
use super::problem::{Position, Problems, quoted};

pub(crate) fn parse(text: &str) -> Result<Node<'_>, Problems> {
    let mut parser = JsonParser {
        text,
        offset: 0,
        lines: LineIndex::new(text),
        budget: Budget::default(),
        depth: 0,
    };
    parser.skip_space();
    if parser.offset == text.len() {
        return Err(Problems::one(Position::START, "the file is empty", None));
    }
    let root = parser.value()?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(root),
        Some(_) => Err(parser.unexpected("the end of the file")),
    }
}

struct JsonParser<'t> {
    text: &'t str,
    offset: usize,
    lines: LineIndex<'t>,
    budget: Budget,
    depth: usize,
}

impl<'t> JsonParser<'t> {
    fn value(&mut self) -> Result<Node<'t>, Problems> {
        let at = self.lines.at(self.offset);
        self.budget.spend(at)?;
        let value = match self.peek() {
            Some('{') => self.nested(Self::map)?,
            Some('[') => self.nested(Self::list)?,
            Some('"') => Value::Text(self.string()?),
            Some('-' | '0'..='9') => Value::Number(Cow::Borrowed(self.number()?)),
            _ if self.word("true") => Value::Bool(true),
            _ if self.word("false") => Value::Bool(false),
            _ if self.word("null") => Value::Null,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { at, value })
    }

    fn nested(
        &mut self,
        inside: fn(&mut Self) -> Result<Value<'t>, Problems>,
    ) -> Result<Value<'t>, Problems> {
        if self.depth >= Budget::DEPTH {
            return Err(Budget::too_deep(self.lines.at(self.offset)));
        }
        self.depth = self.depth.saturating_add(1);
        self.step();
        self.skip_space();
        let value = inside(self)?;
        self.depth = self.depth.saturating_sub(1);
        Ok(value)
    }

    fn list(&mut self) -> Result<Value<'t>, Problems> {
        let mut items = Vec::new();
        if self.eat(']') {
            return Ok(Value::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value()?);
            self.skip_space();
            if self.eat(']') {
                return Ok(Value::List(items));
            }
            if !self.eat(',') {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    fn map(&mut self) -> Result<Value<'t>, Problems> {
        let mut entries = Vec::new();
        if self.eat('}') {
            return Ok(Value::Map(entries));
        }
        loop {
            self.skip_space();
            let at = self.lines.at(self.offset);
            if self.peek() != Some('"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.eat(':') {
                return Err(self.unexpected("`:`"));
            }
            self.skip_space();
            entries.push(Entry { key, at, node: self.value()? });
            self.skip_space();
            if self.eat('}') {
                check_keys(&entries)?;
                return Ok(Value::Map(entries));
            }
            if !self.eat(',') {
                return Err(self.unexpected("`,` or `}`"));
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'t, str>, Problems> {
        let opened = self.offset;
        self.step();
        let begin = self.offset;
        let mut unescaped: Option<String> = None;
        loop {
            let before = self.offset;
            let letter = match self.next() {
                None => {
                    let at = self.lines.at(opened);
                    return Err(Problems::one(at, "a text without its closing quote", None));
                }
                Some('"') => {
                    let raw = self.text.get(begin..before).unwrap_or_default();
                    return Ok(unescaped.map_or(Cow::Borrowed(raw), Cow::Owned));
                }
                Some('\\') => {
                    let raw = self.text.get(begin..before).unwrap_or_default();
                    unescaped.get_or_insert_with(|| raw.to_owned());
                    self.escape(before)?
                }
                Some(control) if u32::from(control) < 0x20 => {
                    let code = u32::from(control);
                    return Err(Problems::one(
                        self.lines.at(before),
                        format!("the control character {code:#04x} within a text"),
                        Some(format!("write `\\u{code:04x}`")),
                    ));
                }
                Some(letter) => letter,
            };
            if let Some(unescaped) = &mut unescaped {
                unescaped.push(letter);
            }
        }
    }

    /// What stands behind a backslash.
    fn escape(&mut self, begin: usize) -> Result<char, Problems> {
        let letter = match self.next() {
            Some(same @ ('"' | '\\' | '/')) => Some(same),
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('u') => self.unicode(),
            _ => None,
        };
        letter.ok_or_else(|| {
            let raw = self.text.get(begin..self.offset).unwrap_or_default();
            let message = format!("{} is no escape of JSON", quoted(raw));
            Problems::one(self.lines.at(begin), message, None)
        })
    }

    /// Four hexadecimal digits, or eight as a pair of surrogates.
    fn unicode(&mut self) -> Option<char> {
        let high = self.four_digits()?;
        if !(0xd800..0xe000).contains(&high) {
            return char::from_u32(high);
        }
        if !(self.eat('\\') && self.eat('u')) {
            return None;
        }
        let low = self.four_digits()?;
        let pair = [u16::try_from(high).ok()?, u16::try_from(low).ok()?];
        let mut letters = char::decode_utf16(pair);
        match (letters.next(), letters.next()) {
            (Some(Ok(letter)), None) => Some(letter),
            _ => None,
        }
    }

    fn four_digits(&mut self) -> Option<u32> {
        let end = self.offset.checked_add(4)?;
        let digits = self.text.get(self.offset..end)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        self.offset = end;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Result<&'t str, Problems> {
        let begin = self.offset;
        self.eat('-');
        let whole = if self.eat('0') { true } else { self.digits() };
        let decimals = if self.eat('.') { self.digits() } else { true };
        let exponent = if self.eat('e') || self.eat('E') {
            let _sign = self.eat('-') || self.eat('+');
            self.digits()
        } else {
            true
        };
        let stops = !matches!(self.peek(), Some('0'..='9' | 'a'..='z' | 'A'..='Z' | '.' | '_'));
        if whole && decimals && exponent && stops {
            return Ok(self.text.get(begin..self.offset).unwrap_or_default());
        }
        let rest = self.text.get(begin..).unwrap_or_default();
        let end = rest.find(|c: char| c.is_whitespace() || ",]}".contains(c)).unwrap_or(rest.len());
        let message = format!("{} is no number of JSON", quoted(rest.get(..end).unwrap_or(rest)));
        Err(Problems::one(self.lines.at(begin), message, None))
    }

    fn digits(&mut self) -> bool {
        let begin = self.offset;
        while matches!(self.peek(), Some('0'..='9')) {
            self.step();
        }
        self.offset > begin
    }

    fn word(&mut self, word: &str) -> bool {
        let rest = self.text.get(self.offset..).unwrap_or_default();
        let Some(behind) = rest.strip_prefix(word) else { return false };
        if behind.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return false;
        }
        self.offset = self.offset.saturating_add(word.len());
        true
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.step();
        }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.offset..)?.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.offset = self.offset.saturating_add(letter.len_utf8());
        Some(letter)
    }

    fn step(&mut self) {
        self.next();
    }

    fn eat(&mut self, expected: char) -> bool {
        let here = self.peek() == Some(expected);
        if here {
            self.step();
        }
        here
    }

    fn unexpected(&self, expected: &str) -> Problems {
        let at = self.lines.at(self.offset);
        let rest = self.text.get(self.offset..).unwrap_or_default();
        let word = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let shown = match rest.chars().next() {
            None => "the end of the file".to_owned(),
            Some(letter) => quoted(rest.get(..word.max(letter.len_utf8())).unwrap_or(rest)),
        };
        let hint = rest.starts_with("//").then(|| "JSON has no comments".to_owned());
        Problems::one(at, format!("{shown} where {expected} is wanted"), hint)
    }
}
