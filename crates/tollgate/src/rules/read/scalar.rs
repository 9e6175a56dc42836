//! Texts, numbers, times, choices, and lists of texts.

use std::time::Duration;

use tollgate_core::Quota;

use super::super::names::Choices;
use super::super::node::{Fields, Node, Value};
use super::super::problem::{did_you_mean, quoted};
use super::RuleReader;

/// The largest whole number that every reader of JSON keeps exact.
pub(super) const MAX_NUMBER: u64 = (1 << 53) - 1;

impl RuleReader {
    /// The text of a field; `None` if it is absent or not a text.
    pub(super) fn text(&mut self, fields: &Fields<'_, '_>, field: &str) -> Option<String> {
        self.text_of(fields.get(field)?, field)
    }

    pub(super) fn text_of(&mut self, node: &Node<'_>, field: &str) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.as_ref().to_owned()),
            other => {
                let hint = match other {
                    Value::Bool(flag) => Some(format!("write \"{flag}\" in quotes")),
                    Value::Number(text) => {
                        Some(format!("write \"{}\" in quotes", quoted(text).trim_matches('`')))
                    }
                    _ => None,
                };
                self.wrong(node, &format!("`{field}`"), "a text", hint);
                None
            }
        }
    }

    /// A list of texts. A single text counts as a list of one.
    pub(super) fn texts(&mut self, fields: &Fields<'_, '_>, field: &str) -> Vec<String> {
        let Some(node) = fields.get(field) else { return Vec::new() };
        match &node.value {
            Value::List(items) => {
                items.iter().filter_map(|item| self.text_of(item, field)).collect()
            }
            Value::Text(text) => vec![text.as_ref().to_owned()],
            _ => {
                self.wrong(node, &format!("`{field}`"), "a list of texts", None);
                Vec::new()
            }
        }
    }

    /// The items of a field; none if it is absent or not a list.
    pub(super) fn list<'n, 't>(&mut self, fields: &Fields<'n, 't>, field: &str) -> &'n [Node<'t>] {
        let Some(node) = fields.get(field) else { return &[] };
        if let Value::List(items) = &node.value {
            return items;
        }
        self.wrong(node, &format!("`{field}`"), "a list", None);
        &[]
    }

    pub(super) fn flag(&mut self, fields: &Fields<'_, '_>, field: &str) -> Option<bool> {
        let node = fields.get(field)?;
        if let Value::Bool(flag) = node.value {
            return Some(flag);
        }
        self.wrong(node, &format!("`{field}`"), "`true` or `false`", None);
        None
    }

    /// A whole number of at least `least`, in plain decimal digits.
    pub(super) fn number(
        &mut self,
        fields: &Fields<'_, '_>,
        field: &str,
        least: u64,
    ) -> Option<u64> {
        self.number_within(fields.get(field)?, field, least, MAX_NUMBER)
    }

    /// A whole number from 1 to `most`, which fits into a byte.
    pub(super) fn small(&mut self, fields: &Fields<'_, '_>, field: &str, most: u8) -> Option<u8> {
        let number = self.number_within(fields.get(field)?, field, 1, u64::from(most))?;
        u8::try_from(number).ok()
    }

    fn number_within(
        &mut self,
        node: &Node<'_>,
        field: &str,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let wanted = format!("a whole number from {least} to {most}");
        let Value::Number(text) = &node.value else {
            let hint = match &node.value {
                Value::Text(text) => digits_of(text).map(|digits| format!("write `{digits}`")),
                _ => None,
            };
            self.wrong(node, &format!("`{field}`"), &wanted, hint);
            return None;
        };
        let plain = text.bytes().all(|byte| byte.is_ascii_digit())
            && (!text.starts_with('0') || text.len() == 1);
        let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        if plain && number.is_some() {
            return number;
        }
        let hint = (!plain)
            .then(|| digits_of(text))
            .flatten()
            .map(|digits| format!("write `{digits}` in plain digits"));
        let message = format!("`{field}` is {}, which is not {wanted}", quoted(text));
        self.problems.add(node.at, message, hint);
        None
    }

    /// A decimal number of at least one, with at most three decimals, in thousandths.
    pub(super) fn thousandths(&mut self, fields: &Fields<'_, '_>, field: &str) -> Option<u32> {
        let node = fields.get(field)?;
        let wanted = "a number above 0 with at most three decimals";
        let Value::Number(text) = &node.value else {
            self.wrong(node, &format!("`{field}`"), wanted, Some("write `1.2`".to_owned()));
            return None;
        };
        let parsed = parse_thousandths(text);
        if parsed.is_none() {
            let message = format!("`{field}` is {}, which is not {wanted}", quoted(text));
            self.problems.add(node.at, message, Some("write `1.2`".to_owned()));
        }
        parsed
    }

    /// A length of time: a whole number and a unit.
    pub(super) fn time(&mut self, fields: &Fields<'_, '_>, field: &str) -> Option<Duration> {
        let node = fields.get(field)?;
        let wanted = "a time such as `30s`";
        let Value::Text(text) = &node.value else {
            let hint = match &node.value {
                Value::Number(text) => digits_of(text).map(|digits| format!("write `{digits}s`")),
                _ => None,
            };
            self.wrong(node, &format!("`{field}`"), wanted, hint);
            return None;
        };
        // A quota's period is the one way in which core reads a time; a blank would end it.
        if text.is_empty() || text.contains(char::is_whitespace) {
            let hint = "write a whole number and one of us, ms, s, m, h, d, w".to_owned();
            let message = format!("`{field}` is {}, where {wanted} is wanted", quoted(text));
            self.problems.add(node.at, message, Some(hint));
            return None;
        }
        match format!("1 per {text}").parse::<Quota>() {
            Ok(quota) => Some(quota.period()),
            Err(error) => {
                self.problems.add(node.at, format!("`{field}`: {error}"), None);
                None
            }
        }
    }

    /// One of several names.
    pub(super) fn choice<T: Copy>(
        &mut self,
        fields: &Fields<'_, '_>,
        field: &str,
        names: Choices<T>,
    ) -> Option<T> {
        let node = fields.get(field)?;
        let all = || names.iter().map(|(name, _)| *name);
        let one_of = || format!("one of {}", all().collect::<Vec<_>>().join(", "));
        let Value::Text(text) = &node.value else {
            self.wrong(node, &format!("`{field}`"), &one_of(), None);
            return None;
        };
        let found = names.iter().find(|(name, _)| name == text).map(|(_, value)| *value);
        if found.is_none() {
            let hint = did_you_mean(text, all());
            let message = format!("`{field}` is {}, which is not {}", quoted(text), one_of());
            self.problems.add(node.at, message, hint);
        }
        found
    }
}

/// The plain decimal digits for `1_000`, `007`, `+5`, `0x10` or `5.0`, for a hint.
fn digits_of(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => &text,
    };
    let plain = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
    if plain { whole.parse().ok() } else { None }
}

fn parse_thousandths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
        return None;
    }
    let thousandths: u32 = format!("{decimals:0<3}").parse().ok()?;
    let value = whole.parse::<u32>().ok()?.checked_mul(1_000)?.checked_add(thousandths)?;
    (value > 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_exact_or_refused() {
        assert_eq!(parse_thousandths("1.2"), Some(1_200));
        assert_eq!(parse_thousandths("1.005"), Some(1_005));
        assert_eq!(parse_thousandths("2"), Some(2_000));
        assert_eq!(parse_thousandths("4294967.295"), Some(u32::MAX));
        for refused in ["0", "0.000", "1.2345", "-1", "1e3", ".5", "1.", "4294967.296", "nan"] {
            assert_eq!(parse_thousandths(refused), None, "{refused}");
        }
    }

    #[test]
    fn what_was_meant_by_other_spellings_is_suggested() {
        assert_eq!(digits_of("1_000"), Some(1_000));
        assert_eq!(digits_of("007"), Some(7));
        assert_eq!(digits_of("0x10"), Some(16));
        assert_eq!(digits_of("5.0"), Some(5));
        assert_eq!(digits_of("-0"), None);
        assert_eq!(digits_of("1e400"), None);
    }
}
