//! The parts of a counter's key (`by = …`): the request's attributes, and values of the function.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Error, Expr, ExprLit, FnArg, Lit, LitStr, Signature};
use tollgate_core::rule::declaration::Rule;
use tollgate_core::rule::{RuleError, RuleSet};

/// A part of a counter's key.
pub(crate) enum KeyPart {
    /// The client's address. An argument named `ip` takes precedence.
    Ip(Expr),
    /// The request's attribute of this name.
    Attribute(String),
    /// The value of an expression.
    Value(Expr),
}

/// The request's attributes that a bare word can name.
const WORDS: [&str; 6] = ["user", "method", "path", "host", "route", "service"];

/// Parses `by = …`: one part, or several in parentheses.
pub(crate) fn read(expr: Expr) -> syn::Result<Vec<KeyPart>> {
    match expr {
        Expr::Tuple(tuple) if tuple.elems.is_empty() => {
            Err(Error::new_spanned(tuple, "nothing to count by: write `by = ip`, or leave it out"))
        }
        Expr::Tuple(tuple) => tuple.elems.into_iter().map(one).collect(),
        expr => Ok(vec![one(expr)?]),
    }
}

fn one(expr: Expr) -> syn::Result<KeyPart> {
    if word(&expr).is_some_and(|word| word == "ip") {
        return Ok(KeyPart::Ip(expr));
    }
    if let Some(text) = literal(&expr) {
        return Err(Error::new_spanned(text, constant(&text.value())));
    }
    let Expr::Call(call) = &expr else { return Ok(KeyPart::Value(expr)) };
    let Some(word) = word(&call.func) else { return Ok(KeyPart::Value(expr)) };
    if !["header", "attribute"].contains(&word.as_str()) {
        return Ok(KeyPart::Value(expr));
    }
    let mut arguments = call.args.iter();
    let (Some(text), None) = (arguments.next().and_then(literal), arguments.next()) else {
        let example = if word == "header" { "x-api-key" } else { "user" };
        let message = format!("`{word}` takes a name: write `{word}(\"{example}\")`");
        return Err(Error::new_spanned(&expr, message));
    };
    let name = match word.as_str() {
        "header" => format!("header.{}", text.value().to_ascii_lowercase()),
        _ => text.value(),
    };
    check(&name).map_err(|message| Error::new_spanned(text, message))?;
    Ok(KeyPart::Attribute(name))
}

/// Checks that a request can have an attribute of this name.
fn check(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty: write `attribute(\"user\")`".to_owned());
    }
    if name.starts_with("path.") {
        let message = "a function has no captures of a path: take the value from its arguments";
        return Err(message.to_owned());
    }
    let mut rule = Rule::new("any");
    rule.by = vec![name.to_owned()];
    let checked = RuleSet::in_code("any", vec![rule]);
    let in_by = |error: &&RuleError| error.place().field == Some("by");
    let errors = checked.err().unwrap_or_default();
    match errors.iter().find(in_by) {
        Some(error) => Err(error.message().to_owned()),
        None => Ok(()),
    }
}

/// The message for a constant text as a value.
fn constant(text: &str) -> String {
    let meant = if text == "ip" { "ip".to_owned() } else { format!("attribute({text:?})") };
    format!(
        "a constant text is one counter for all callers: write `by = {meant}` for the request's"
    )
}

impl KeyPart {
    /// Resolves the part, given the arguments of the function.
    pub(crate) fn settle(self, signature: &Signature) -> syn::Result<Self> {
        match self {
            Self::Ip(expr) if binds(signature, "ip") => Ok(Self::Value(expr)),
            Self::Value(expr) => {
                let word = word(&expr).filter(|word| WORDS.contains(&word.as_str()));
                match word {
                    Some(word) if !binds(signature, &word) => {
                        let message = format!(
                            "the function has no argument `{word}`: write `attribute(\"{word}\")` \
                             for the request's"
                        );
                        Err(Error::new_spanned(expr, message))
                    }
                    _ => Ok(Self::Value(expr)),
                }
            }
            other => Ok(other),
        }
    }

    /// The text of the part, to find duplicates.
    pub(crate) fn written(&self) -> String {
        match self {
            Self::Ip(_) => "ip".to_owned(),
            Self::Attribute(name) => format!("attribute {name}"),
            Self::Value(expr) => expr.to_token_stream().to_string(),
        }
    }
}

/// True if an argument of the function has this name.
fn binds(signature: &Signature, name: &str) -> bool {
    argument_names(signature).iter().any(|known| known == name)
}

/// The names that the arguments of a function bind.
pub(crate) fn argument_names(signature: &Signature) -> Vec<String> {
    fn find(tokens: TokenStream, names: &mut Vec<String>) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => names.push(ident.to_string()),
                TokenTree::Group(group) => find(group.stream(), names),
                _ => {}
            }
        }
    }
    let mut names = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Typed(typed) => find(typed.pat.to_token_stream(), &mut names),
            FnArg::Receiver(_) => names.push("self".to_owned()),
        }
    }
    // Types, and words about how a name is bound, bind nothing.
    names.retain(|name| {
        name.starts_with(char::is_lowercase) && !["mut", "ref", "box"].contains(&name.as_str())
    });
    names
}

/// The single word of an expression; `None` for any other expression.
pub(crate) fn word(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

fn literal(expr: &Expr) -> Option<&LitStr> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text),
        _ => None,
    }
}
