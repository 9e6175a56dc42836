//! An answer as JSON, written by hand: it is most of what a check costs beside the socket.
//!
//! Byte for byte what serde makes of [`CheckAnswer`]; a test compares the two, and both change together.

use super::wire::{CheckAnswer, LimitState, RefusedBy};

/// Length of a typical answer, so that it is written without growing.
pub(super) const USUAL: usize = 512;

/// The answer as JSON.
pub(super) fn answer(answer: &CheckAnswer<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"allowed\":");
    boolean(answer.allowed, out);
    out.extend_from_slice(b",\"reason\":");
    text(answer.reason, out);
    out.extend_from_slice(b",\"rules_version\":");
    number(answer.rules_version, out);
    out.extend_from_slice(b",\"degraded\":");
    boolean(answer.degraded, out);
    out.extend_from_slice(b",\"source\":");
    text(answer.source, out);
    if let Some(by) = &answer.refused_by {
        out.extend_from_slice(b",\"refused_by\":");
        refused_by(by, out);
    }
    if let Some(retry) = answer.retry_after_ms {
        out.extend_from_slice(b",\"retry_after_ms\":");
        match retry {
            Some(millis) => number(millis, out),
            None => out.extend_from_slice(b"null"),
        }
    }
    if let Some(wait) = answer.wait_ms {
        out.extend_from_slice(b",\"wait_ms\":");
        number(wait, out);
    }
    out.extend_from_slice(b",\"limits\":[");
    for (at, each) in answer.limits.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        limit(each, out);
    }
    out.extend_from_slice(b"]}");
}

fn refused_by(by: &RefusedBy<'_>, out: &mut Vec<u8>) {
    let members =
        [("rule", by.rule), ("limit", by.limit), ("list", by.list), ("missing", by.missing)];
    out.push(b'{');
    let mut first = true;
    for (name, value) in members {
        let Some(value) = value else { continue };
        if !first {
            out.push(b',');
        }
        first = false;
        text(name, out);
        out.push(b':');
        text(value, out);
    }
    out.push(b'}');
}

fn limit(limit: &LimitState<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"rule\":");
    text(limit.rule, out);
    out.extend_from_slice(b",\"limit\":");
    text(limit.limit, out);
    out.extend_from_slice(b",\"allows\":");
    text(limit.allows, out);
    out.extend_from_slice(b",\"allowed\":");
    boolean(limit.allowed, out);
    out.extend_from_slice(b",\"remaining\":");
    number(limit.remaining, out);
    out.extend_from_slice(b",\"reset_after_ms\":");
    number(limit.reset_after_ms, out);
    out.push(b'}');
}

fn boolean(value: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

pub(super) fn number(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0_u8; 20];
    let mut from = digits.len();
    for place in digits.iter_mut().rev() {
        // The remainder by ten is a digit.
        *place = b'0'.wrapping_add(u8::try_from(value % 10).unwrap_or(0));
        from = from.saturating_sub(1);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(from..).unwrap_or_default());
}

/// A string; most need no escaping, and the rest is left to those who know how.
fn text(text: &str, out: &mut Vec<u8>) {
    let escapes = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    // All of it is looked at, as then several bytes are at a time.
    if !text.as_bytes().iter().fold(false, |any, byte| any | escapes(byte)) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a string into memory does not fail.
        let _ = serde_json::to_writer(out, text);
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Ask;
    use tollgate::rules::{self, Format};
    use tollgate::{EmbeddedStore, Limiter};

    use super::*;

    const RULES: &str = r#"
version: 7
domain: shop
rules:
  - name: "quoted \" \\ ü"
    by: [user]
    limits: [2 per 1m, { count: 3, per: 1h, algorithm: sliding-log, name: "a/b" }]
  - name: tenants
    match: { path: /t }
    by: [tenant]
    on-missing: refuse
    limits: [5 per 1s]
lists:
  block: [203.0.113.66]
"#;

    #[tokio::test]
    async fn an_answer_is_written_as_serde_would_write_it() {
        let limiter = Limiter::new(EmbeddedStore::new());
        limiter.set_rules(rules::load(RULES, Format::Yaml).unwrap()).unwrap();
        let user = Ask::new("shop").with("user", "u").unwrap();
        let asks = [
            user.clone(),
            user.clone(),
            user.clone(),
            user.clone().cost(100),
            Ask::new("nowhere"),
            Ask::new("shop").ip([203, 0, 113, 66].into()),
            Ask::new("shop").with("path", "/t").unwrap(),
        ];
        let mut refused = 0;
        for ask in &asks {
            let patience = std::time::Duration::from_secs(45);
            for admission in [limiter.admit(ask).await, limiter.admit_within(ask, patience).await] {
                refused += u32::from(!admission.passes());
                let said = CheckAnswer::new(&admission);
                let expected = serde_json::to_string(&said).unwrap();
                let mut out = Vec::new();
                answer(&said, &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        }
        assert!(refused > 3);
        for value in [0, 9, 10, u64::MAX] {
            let mut out = Vec::new();
            number(value, &mut out);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
