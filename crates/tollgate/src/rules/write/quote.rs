//! Texts in double quotes, with the escapes that YAML, TOML and JSON share.

/// The escape of a character beyond the first 65 536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Astral {
    /// As `\U0001f600`, in YAML and TOML.
    Long,
    /// As two surrogates, in JSON.
    Pair,
}

/// The text in double quotes. What is not plainly visible is escaped.
pub(super) fn quoted(text: &str, astral: Astral) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(letter),
            visible if visible.is_alphanumeric() => out.push(visible),
            hidden => escape(&mut out, hidden, astral),
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, letter: char, astral: Astral) {
    let code = u32::from(letter);
    if astral == Astral::Long && code > 0xffff {
        out.push_str(&format!("\\U{code:08x}"));
        return;
    }
    for unit in letter.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}
