//! Names of domains, rules, limits and attributes, and suggestions for misspelled ones.

use super::super::ask::{Ask, AttributeName, folded};
use super::super::error::{ErrorReport, Place};
use super::super::hash::Table;

/// The most names that are compared for a suggestion: an error is worth a millisecond, not a
/// second.
const MAX_COMPARED: usize = 2_000;

/// Reports errors in the name of a domain, rule or limit.
pub(super) fn check(name: &str, longest: usize, place: Place, report: &mut ErrorReport) {
    let message = if name.is_empty() {
        "the name is empty".to_owned()
    } else if name.len() > longest {
        format!("`{}` has {} bytes, a name at most {longest}", shown(name), name.len())
    } else if name.chars().any(char::is_control) {
        format!("`{}` has a control character", shown(name))
    } else if name.chars().any(turns_text) {
        format!("`{}` has a character that turns the direction of text", shown(name))
    } else if name.trim() != name {
        format!("`{name}` begins or ends with a space")
    } else {
        return;
    };
    report.add(place, message);
}

/// Reports errors in a list of attributes, one by one and together.
pub(super) fn check_attributes(names: &[String], place: Place, report: &mut ErrorReport) {
    let mut seen = Table::default();
    for (at, name) in names.iter().enumerate() {
        check_attribute(name, place.item(at), report);
        if seen.insert(folded(name), ()).is_some() {
            report.add(place.item(at), format!("`{}` is here twice", shown(name)));
        }
    }
}

/// Reports errors in the name of an attribute.
pub(super) fn check_attribute(name: &str, place: Place, report: &mut ErrorReport) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // A header's name is a token of RFC 9110, which has more characters than these.
    let is_token = |byte: u8| fits(byte) || b"!#$%&'*+^`|~".contains(&byte);
    let (is_header, plain) = match name.strip_prefix("header.") {
        Some(header) => (true, header),
        None => (false, name.strip_prefix("path.").unwrap_or(name)),
    };
    let (message, hint) = if plain.is_empty() {
        ("the name of an attribute is empty".to_owned(), None)
    } else if name.len() > Ask::MAX_NAME {
        let message = format!("`{}` has {} bytes", shown(name), name.len());
        (message, Some(format!("an attribute's name has at most {}", Ask::MAX_NAME)))
    } else if is_header && !plain.bytes().all(is_token) {
        (format!("`{}` is not a header name", shown(name)), None)
    } else if !is_header && !plain.bytes().all(fits) {
        let hint = "letters, digits, `-`, `_` and `.`".to_owned();
        (format!("`{}` is not an attribute name", shown(name)), Some(hint))
    } else if let Some(meant) = meant_attribute(name) {
        (format!("`{name}` is not an attribute"), Some(format!("did you mean `{meant}`?")))
    } else {
        return;
    };
    report.add(place, message).some_hint(hint);
}

/// Reports a captured attribute in a place where only the ask's own are allowed.
pub(super) fn refuse_captured(name: &str, place: Place, report: &mut ErrorReport) {
    if name.strip_prefix("path.").is_some() {
        report
            .add(place, format!("`{name}` is captured by `path` itself"))
            .hint("write the value into the path, in place of the capture");
    }
}

/// The known attribute that a name is another spelling of. Other attributes may have any name, so
/// only certain mistakes are reported.
fn meant_attribute(name: &str) -> Option<String> {
    let wrong = ["headers.", "Header.", "Headers.", "http.header.", "header:", "header-"];
    if let Some(header) = wrong.iter().find_map(|wrong| name.strip_prefix(wrong)) {
        return Some(format!("header.{header}"));
    }
    let lower = name.to_ascii_lowercase();
    let known = AttributeName::KNOWN.contains(&lower.as_str()) && lower != name;
    let alias = match lower.as_str() {
        "remote_addr" | "remote-addr" | "client_ip" | "client-ip" | "ip_address" => Some("ip"),
        "uri" | "url" => Some("path"),
        "verb" => Some("method"),
        "user_id" | "user-id" | "userid" => Some("user"),
        _ => None,
    };
    if known { Some(lower) } else { alias.map(str::to_owned) }
}

/// The most similar of these names, if one is similar enough.
pub(super) fn nearest<'n>(name: &str, among: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = name.chars().count().div_ceil(4).min(3);
    among
        .filter(|other| other.len().abs_diff(name.len()) <= near)
        .take(MAX_COMPARED)
        .map(|other| (edit_distance(name, other), other))
        .filter(|(distance, _)| (1..=near).contains(distance))
        .min()
        .map(|(_, other)| other)
}

/// The edit distance of two words: letters to insert, remove or change.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        row[0] = left;
        for (to, cell) in b.chars().zip(row.iter_mut().skip(1)) {
            let changed = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// True for a character that reverses the display order of the text after it, which could disguise
/// a name.
const fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name for a message: its beginning, without control characters.
pub(super) fn shown(name: &str) -> String {
    let clean = |c: char| if c.is_control() || turns_text(c) { '\u{fffd}' } else { c };
    let mut shown: String = name.chars().take(64).map(clean).collect();
    if name.chars().nth(64).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_edits() {
        for (a, b, edits) in [("", "abc", 3), ("login", "login", 0), ("lgoin", "login", 2)] {
            assert_eq!(edit_distance(a, b), edits, "{a} {b}");
            assert_eq!(edit_distance(b, a), edits, "{b} {a}");
        }
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        let names = ["per-user", "per-ip", "login"];

        assert_eq!(nearest("per-usr", names.into_iter()), Some("per-user"));
        assert_eq!(nearest("checkout", names.into_iter()), None);
    }

    #[test]
    fn a_known_attribute_in_other_words_is_recognised() {
        for (name, meant) in [("IP", "ip"), ("headers.x", "header.x"), ("user_id", "user")] {
            assert_eq!(meant_attribute(name).as_deref(), Some(meant));
        }
        for name in ["ip", "tenant", "users", "Tenant", "header.x"] {
            assert_eq!(meant_attribute(name), None);
        }
    }
}
