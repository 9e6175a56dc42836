//! The arguments of `#[limit(…)]`.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, Lit, LitStr, Token};
use tollgate_core::Algorithm;
use tollgate_core::rule::bounds::{MAX_BY, MAX_LIMITS};

use crate::key_parts::{self, KeyPart};
use crate::nearest::nearest;
use crate::quota::{self, CheckedLimit};

/// The arguments of one attribute: limits of its own, or the name of a rule.
#[derive(Default)]
pub(crate) struct LimitArguments {
    texts: Vec<LitStr>,
    pub(crate) limits: Vec<CheckedLimit>,
    pub(crate) rule: Option<LitStr>,
    pub(crate) domain: Option<LitStr>,
    algorithm: Option<(Algorithm, Span)>,
    pub(crate) by: Option<Vec<KeyPart>>,
    pub(crate) message: Option<LitStr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) error: Option<Expr>,
    pub(crate) name: Option<LitStr>,
}

const NAMES: [&str; 9] =
    ["by", "rule", "domain", "message", "algorithm", "cost", "limiter", "error", "name"];

impl Parse for LimitArguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        let wrong = "a limit is a text: write `\"5 per 1m\"`";
        parse_arguments(input, wrong, |text| match text {
            Some(text) => {
                arguments.texts.push(text);
                Ok(())
            }
            None => arguments.named(input),
        })?;
        arguments.check()?;
        Ok(arguments)
    }
}

/// Parses arguments between commas: texts, for which the callback gets `None`, and named arguments.
pub(crate) fn parse_arguments(
    input: ParseStream<'_>,
    wrong_literal: &str,
    mut argument: impl FnMut(Option<LitStr>) -> syn::Result<()>,
) -> syn::Result<()> {
    while !input.is_empty() {
        if input.peek(LitStr) {
            argument(Some(input.parse()?))?;
        } else if input.peek(Lit) {
            return Err(Error::new(input.span(), wrong_literal));
        } else {
            argument(None)?;
        }
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

impl LimitArguments {
    fn named(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let name = name(input, &NAMES, example)?;
        let text = name.to_string();
        match text.as_str() {
            "by" => set_once(&mut self.by, &name, key_parts::read(input.parse()?)?),
            "rule" => set_once(&mut self.rule, &name, name_text(&text, input)?),
            "domain" => set_once(&mut self.domain, &name, name_text(&text, input)?),
            "message" => set_once(&mut self.message, &name, literal(&text, input)?),
            "name" => set_once(&mut self.name, &name, name_text(&text, input)?),
            "algorithm" => set_once(&mut self.algorithm, &name, algorithm(input)?),
            "cost" => set_once(&mut self.cost, &name, input.parse()?),
            "limiter" => set_once(&mut self.limiter, &name, input.parse()?),
            _ => set_once(&mut self.error, &name, input.parse()?),
        }
    }

    fn check(&mut self) -> syn::Result<()> {
        let texts = std::mem::take(&mut self.texts);
        match (&self.rule, &self.domain) {
            (Some(_), _) => {
                if let Some(limit) = texts.first() {
                    let message = "a rule has limits of its own: put these into another \
                                   `#[limit(…)]` of the function";
                    return Err(Error::new(limit.span(), message));
                }
                if let Some((_, span)) = self.algorithm {
                    return Err(Error::new(span, "a rule has an algorithm of its own: drop it"));
                }
            }
            (None, Some(domain)) => {
                let message = "a domain belongs to a rule: add `rule = \"…\"`";
                return Err(Error::new(domain.span(), message));
            }
            (None, None) => self.limits = limits(texts, self.algorithm.map(|(named, _)| named))?,
        }
        match self.by.as_ref().map_or(0, Vec::len) {
            values if values > MAX_BY => {
                let message = format!("{values} values to count by are more than {MAX_BY}");
                Err(Error::new(Span::call_site(), message))
            }
            _ => Ok(()),
        }
    }
}

fn limits(texts: Vec<LitStr>, named: Option<Algorithm>) -> syn::Result<Vec<CheckedLimit>> {
    if texts.is_empty() {
        let message = "no limit is given: write `#[limit(\"5 per 1m\")]`, or \
                       `#[limit(rule = \"login\")]` for a rule of the limiter";
        return Err(Error::new(Span::call_site(), message));
    }
    if let Some(text) = texts.get(MAX_LIMITS) {
        let message = format!("more than {MAX_LIMITS} limits: put some into another `#[limit(…)]`");
        return Err(Error::new(text.span(), message));
    }
    let checked = texts.into_iter().map(|text| quota::check(text, named));
    let checked = checked.collect::<syn::Result<Vec<_>>>()?;
    quota::refuse_twins(&checked)?;
    Ok(checked)
}

/// Parses the name of an argument, one of `names`, and its `=`.
pub(crate) fn name(
    input: ParseStream<'_>,
    names: &[&str],
    example: impl Fn(&str) -> &'static str,
) -> syn::Result<Ident> {
    let name = input.call(Ident::parse_any)?;
    let text = name.to_string();
    if !names.contains(&text.as_str()) {
        return Err(Error::new(name.span(), unknown(&text, names)));
    }
    if !input.peek(Token![=]) {
        let message = format!("`{text}` needs a value: write `{text} = {}`", example(&text));
        return Err(Error::new(name.span(), message));
    }
    input.parse::<Token![=]>()?;
    Ok(name)
}

pub(crate) fn set_once<T>(place: &mut Option<T>, name: &Ident, value: T) -> syn::Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(name.span(), format!("`{name}` is given twice"))),
    }
}

fn literal(name: &str, input: ParseStream<'_>) -> syn::Result<LitStr> {
    let wrong = |error: Error| {
        let message = format!("`{name}` is a text: write `{name} = {}`", example(name));
        Error::new(error.span(), message)
    };
    input.parse().map_err(wrong)
}

/// Parses a text that is a name.
fn name_text(name: &str, input: ParseStream<'_>) -> syn::Result<LitStr> {
    let text = literal(name, input)?;
    let value = text.value();
    let wrong = if value.is_empty() {
        "is empty"
    } else if value.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Ok(text);
    };
    let message = format!("`{name}` {wrong}: write `{name} = {}`", example(name));
    Err(Error::new_spanned(text, message))
}

/// Parses the name of an algorithm: words with hyphens, or a text.
fn algorithm(input: ParseStream<'_>) -> syn::Result<(Algorithm, Span)> {
    let span = input.span();
    let name = if input.peek(LitStr) {
        input.parse::<LitStr>()?.value()
    } else {
        let mut name = input.call(Ident::parse_any)?.to_string();
        while input.peek(Token![-]) {
            input.parse::<Token![-]>()?;
            name.push('-');
            name.push_str(&input.call(Ident::parse_any)?.to_string());
        }
        name
    };
    let found = quota::algorithm(&name.replace('_', "-"));
    found.map(|algorithm| (algorithm, span)).map_err(|message| Error::new(span, message))
}

fn unknown(name: &str, names: &[&str]) -> String {
    match nearest(name, names) {
        Some(meant) => format!("unknown argument `{name}`: did you mean `{meant} = …`?"),
        None => format!("unknown argument `{name}`: there are {}", names.join(", ")),
    }
}

fn example(name: &str) -> &'static str {
    match name {
        "by" => "ip",
        "rule" => "\"login\"",
        "domain" => "\"shop\"",
        "message" => "\"too many attempts, try again later\"",
        "algorithm" => "token-bucket",
        "cost" => "items.len() as u64",
        "limiter" => "state.limiter",
        "error" => "MyError::from_refused",
        _ => "\"shop::checkout\"",
    }
}
