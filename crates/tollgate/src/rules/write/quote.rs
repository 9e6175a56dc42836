//! Texts in double quotes, with the escapes that YAML, TOML and JSON share.

/// The escape of a supplementary character of Unicode, one above U+FFFF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SupplementaryEscape {
    /// As `\U0001f600`, in YAML and TOML.
    EightDigits,
    /// As two surrogates, in JSON.
    SurrogatePair,
}

/// The text in double quotes, with escapes for all invisible characters.
pub(super) fn quoted(text: &str, escape_form: SupplementaryEscape) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(2));
    push_quoted(&mut out, text, escape_form);
    out
}

/// Appends the text in double quotes.
pub(super) fn push_quoted(out: &mut String, text: &str, escape_form: SupplementaryEscape) {
    out.push('"');
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        out.push_str(text);
    } else {
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                ' '..='~' => out.push(letter),
                visible if visible.is_alphanumeric() => out.push(visible),
                hidden => escape(out, hidden, escape_form),
            }
        }
    }
    out.push('"');
}

fn escape(out: &mut String, letter: char, escape_form: SupplementaryEscape) {
    let code = u32::from(letter);
    if escape_form == SupplementaryEscape::EightDigits && code > 0xffff {
        out.push_str(&format!("\\U{code:08x}"));
        return;
    }
    for unit in letter.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}
