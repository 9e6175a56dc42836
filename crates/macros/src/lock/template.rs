//! The name of a lock: text, with values of the function in braces.

use syn::{Error, Expr, LitStr, Signature};
use tollgate_core::lock::LockName;

use crate::key_parts::{argument_names, word};
use crate::nearest::nearest;

/// A part of a name.
pub(super) enum NamePart {
    Text(String),
    Value(Box<Expr>),
}

/// Parses a name.
pub(super) fn read(text: &LitStr, signature: &Signature) -> syn::Result<Vec<NamePart>> {
    let wrong = |message: String| Error::new(text.span(), message);
    let written = text.value();
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = written.as_str();
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        if let Some(after) = from.strip_prefix("{{") {
            plain.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            plain.push('}');
            rest = after;
        } else if let Some(inside) = from.strip_prefix('{') {
            let Some((inside, after)) = inside.split_once('}') else {
                return Err(wrong(format!("`{from}` has no end: write `{{{{` for a brace")));
            };
            let value = NamePart::Value(Box::new(value(inside, text, signature)?));
            if plain.is_empty() && matches!(pieces.last(), Some(NamePart::Value(_))) {
                return Err(wrong(format!(
                    "nothing stands between two values, and `1` and `23` would be `12` and `3`: \
                     put a text before `{{{inside}}}`, or write `by = (…)`"
                )));
            }
            if !plain.is_empty() {
                pieces.push(NamePart::Text(std::mem::take(&mut plain)));
            }
            pieces.push(value);
            rest = after;
        } else {
            return Err(wrong("a `}` begins nowhere: write `}}` for a brace".to_owned()));
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(NamePart::Text(plain));
    }
    check(&pieces).map_err(wrong)?;
    Ok(pieces)
}

fn check(pieces: &[NamePart]) -> Result<(), String> {
    let lengths = pieces.iter().map(|piece| match piece {
        NamePart::Text(text) => text.len(),
        NamePart::Value(_) => 0,
    });
    let length: usize = lengths.sum();
    if pieces.is_empty() {
        return Err("a lock needs a name: write `#[lock(\"order:{id}\")]`".to_owned());
    }
    if length > LockName::MAX_LEN {
        return Err(format!("a name of {length} bytes is above {}", LockName::MAX_LEN));
    }
    Ok(())
}

/// Parses a value: an argument, a field of it, or a call of its methods.
fn value(inside: &str, text: &LitStr, signature: &Signature) -> syn::Result<Expr> {
    let wrong = |message: String| Error::new(text.span(), message);
    if inside.trim().is_empty() {
        return Err(wrong("`{}` names no argument: write `{id}`, or `{{}}` for braces".to_owned()));
    }
    let shape = || {
        wrong(format!(
            "`{{{inside}}}` is no argument of the function, nor a field or method of one, such as \
             `{{id}}`, `{{order.id}}` or `{{order.id()}}`: write anything else as `by = …`"
        ))
    };
    let parsed: Expr = LitStr::new(inside, text.span()).parse().map_err(|_| shape())?;
    let root = root(&parsed).ok_or_else(shape)?;
    let known = argument_names(signature);
    // A constant is in scope without being an argument.
    if known.contains(&root) || root.chars().all(|c| !c.is_lowercase()) {
        return Ok(parsed);
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = match (nearest(&root, &known), known.as_slice()) {
        (Some(meant), _) => format!("did you mean `{meant}`?"),
        (None, []) => "it has none".to_owned(),
        (None, names) => format!("there are {}", names.join(", ")),
    };
    Err(wrong(format!("the function has no argument `{root}`: {hint}")))
}

/// The variable at the beginning of a chain of fields and methods.
fn root(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(_) => word(expr),
        Expr::Field(field) => root(&field.base),
        Expr::MethodCall(call) if call.args.is_empty() && call.turbofish.is_none() => {
            root(&call.receiver)
        }
        _ => None,
    }
}
