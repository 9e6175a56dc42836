//! JSON into a tree: exactly RFC 8259, with places, and with unique keys.
//!
//! Written by hand, because available parsers lose one of three things that a rule file needs: the
//! place of a value, the second of two equal keys, or the digits of a number.

use std::borrow::Cow;

use super::node::{Budget, MapEntry, Node, Value, check_keys};
use super::problem::{Position, Problems, quoted};

pub(crate) fn parse(text: &str) -> Result<Node<'_>, Problems> {
    let (at, budget) = (Position::START, Budget::default());
    let mut parser = JsonParser { rest: text, at, budget, depth: 0 };
    parser.skip_space();
    if parser.rest.is_empty() {
        return Err(Problems::one(Position::START, "the file is empty", None));
    }
    let root = parser.value()?;
    parser.skip_space();
    if parser.rest.is_empty() { Ok(root) } else { Err(parser.unexpected("the end of the file")) }
}

struct JsonParser<'t> {
    rest: &'t str,
    /// The place at which `rest` begins.
    at: Position,
    budget: Budget,
    depth: usize,
}

impl<'t> JsonParser<'t> {
    fn value(&mut self) -> Result<Node<'t>, Problems> {
        let at = self.at;
        self.budget.spend(at)?;
        let value = match self.peek() {
            Some('{') => Value::Map(self.items('}', "`,` or `}`", Self::entry)?),
            Some('[') => Value::List(self.items(']', "`,` or `]`", Self::value)?),
            Some('"') => Value::Text(self.string()?),
            Some('-' | '0'..='9') => Value::Number(Cow::Borrowed(self.number()?)),
            _ if self.word("true") => Value::Bool(true),
            _ if self.word("false") => Value::Bool(false),
            _ if self.word("null") => Value::Null,
            _ => return Err(self.unexpected("a value")),
        };
        if let Value::Map(entries) = &value {
            check_keys(entries)?;
        }
        Ok(Node { at, value })
    }

    /// The items of a list or map, between commas, up to its closing bracket.
    fn items<T>(
        &mut self,
        close: char,
        wanted: &str,
        item: fn(&mut Self) -> Result<T, Problems>,
    ) -> Result<Vec<T>, Problems> {
        if self.depth >= Budget::DEPTH {
            return Err(Budget::too_deep(self.at));
        }
        self.depth += 1;
        self.next();
        self.skip_space();
        let mut items = Vec::new();
        while !self.eat(close) {
            if !items.is_empty() {
                if !self.eat(',') {
                    return Err(self.unexpected(wanted));
                }
                self.skip_space();
            }
            items.push(item(self)?);
            self.skip_space();
        }
        self.depth -= 1;
        Ok(items)
    }

    fn entry(&mut self) -> Result<MapEntry<'t>, Problems> {
        let at = self.at;
        if self.peek() != Some('"') {
            return Err(self.unexpected("a key in double quotes"));
        }
        let key = self.string()?;
        self.skip_space();
        if !self.eat(':') {
            return Err(self.unexpected("`:`"));
        }
        self.skip_space();
        Ok(MapEntry { key, at, node: self.value()? })
    }

    fn string(&mut self) -> Result<Cow<'t, str>, Problems> {
        let opened = self.at;
        self.next();
        let begin = self.rest;
        let mut unescaped: Option<String> = None;
        loop {
            let (at, raw) = (self.at, &begin[..begin.len() - self.rest.len()]);
            let letter = match self.next() {
                None => {
                    return Err(Problems::one(opened, "a text without its closing quote", None));
                }
                Some('"') => return Ok(unescaped.map_or(Cow::Borrowed(raw), Cow::Owned)),
                Some('\\') => {
                    unescaped.get_or_insert_with(|| raw.to_owned());
                    self.escape(at)?
                }
                Some(control @ '\0'..'\x20') => {
                    let code = u32::from(control);
                    let message = format!("the control character {code:#04x} within a text");
                    return Err(Problems::one(at, message, Some(format!("write `\\u{code:04x}`"))));
                }
                Some(letter) => letter,
            };
            if let Some(unescaped) = &mut unescaped {
                unescaped.push(letter);
            }
        }
    }

    /// The character for an escape, whose backslash stands at `at`.
    fn escape(&mut self, at: Position) -> Result<char, Problems> {
        let begin = self.rest;
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
            let raw = &begin[..begin.len() - self.rest.len()];
            let message = format!("{} is not a JSON escape", quoted(&format!("\\{raw}")));
            Problems::one(at, message, None)
        })
    }

    /// Four hexadecimal digits, or eight as a pair of surrogates.
    fn unicode(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        let is_pair = (0xd800..0xe000).contains(&first);
        let second = match is_pair && self.eat('\\') && self.eat('u') {
            true => Some(self.four_digits()?),
            false => None,
        };
        let mut letters = char::decode_utf16([first].into_iter().chain(second));
        letters.next()?.ok().filter(|_| letters.next().is_none())
    }

    fn four_digits(&mut self) -> Option<u16> {
        let digits = self.rest.get(..4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
        for _ in 0..4 {
            self.next();
        }
        Some(number)
    }

    fn number(&mut self) -> Result<&'t str, Problems> {
        let (at, begin) = (self.at, self.rest);
        self.eat('-');
        let whole = self.eat('0') || self.digits();
        let decimals = !self.eat('.') || self.digits();
        let exponent = !(self.eat('e') || self.eat('E')) || {
            let _sign = self.eat('-') || self.eat('+');
            self.digits()
        };
        let stops = !matches!(self.peek(), Some('0'..='9' | 'a'..='z' | 'A'..='Z' | '.' | '_'));
        if whole && decimals && exponent && stops {
            return Ok(&begin[..begin.len() - self.rest.len()]);
        }
        let end = begin.find(|c: char| c.is_whitespace() || ",]}".contains(c));
        let written = &begin[..end.unwrap_or(begin.len())];
        Err(Problems::one(at, format!("{} is not a JSON number", quoted(written)), None))
    }

    fn digits(&mut self) -> bool {
        let before = self.rest.len();
        self.skip(|c| c.is_ascii_digit());
        self.rest.len() < before
    }

    fn word(&mut self, word: &str) -> bool {
        let behind = self.rest.strip_prefix(word);
        let is_word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let found = behind.is_some_and(is_word);
        if found {
            for _ in word.chars() {
                self.next();
            }
        }
        found
    }

    fn skip_space(&mut self) {
        self.skip(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
    }

    fn skip(&mut self, which: fn(char) -> bool) {
        while self.peek().is_some_and(which) {
            self.next();
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut letters = self.rest.chars();
        let letter = letters.next()?;
        self.rest = letters.as_str();
        self.at = self.at.after(letter);
        Some(letter)
    }

    fn eat(&mut self, expected: char) -> bool {
        let is_here = self.peek() == Some(expected);
        if is_here {
            self.next();
        }
        is_here
    }

    fn unexpected(&self, expected: &str) -> Problems {
        let word = self.rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(self.rest.len());
        let shown = match self.peek() {
            None => "the end of the file".to_owned(),
            Some(letter) => quoted(&self.rest[..word.max(letter.len_utf8())]),
        };
        let hint = self.rest.starts_with("//").then(|| "JSON has no comments".to_owned());
        Problems::one(self.at, format!("{shown} where {expected} is wanted"), hint)
    }
}
