//! The arguments of `#[lock(…)]`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, LitStr, Signature};
use tollgate_core::Quota;
use tollgate_core::lock::Lease;

use super::template::{self, NamePart};
use crate::arguments::{name, parse_arguments, set_once};

/// The arguments of the attribute.
#[derive(Default)]
pub(super) struct LockArguments {
    name: Option<LitStr>,
    pub(super) name_parts: Vec<NamePart>,
    /// Values that are added to the name, each after its length.
    pub(super) by: Option<Vec<Expr>>,
    pub(super) wait: Option<Wait>,
    pub(super) lease: Option<Duration>,
    pub(super) fence: Option<Ident>,
    pub(super) guard: Option<Ident>,
    pub(super) owner: Option<Expr>,
    pub(super) locks: Option<Expr>,
    pub(super) error: Option<Expr>,
}

/// The longest wait for the lock.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    Forever,
    For(Duration),
}

/// The default wait: the time for which a store that does not answer is asked again. It is finite,
/// because otherwise all callers would queue behind a holder that hangs.
pub(super) const WAIT: Wait = Wait::For(Duration::from_secs(10));

const NAMES: [&str; 8] = ["by", "wait", "lease", "fence", "guard", "owner", "locks", "error"];

/// Parses the arguments of the attribute of a function.
pub(super) fn read(tokens: TokenStream, signature: &Signature) -> syn::Result<LockArguments> {
    let mut arguments = syn::parse2::<LockArguments>(tokens)?;
    let Some(name) = &arguments.name else {
        let message = "the lock has no name: write `#[lock(\"order:{id}\")]`";
        return Err(Error::new(Span::call_site(), message));
    };
    arguments.name_parts = template::read(name, signature)?;
    Ok(arguments)
}

impl Parse for LockArguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        let wrong = "the name of a lock is a text: write `\"order:{id}\"`";
        parse_arguments(input, wrong, |text| {
            let Some(name) = text else { return arguments.named(input) };
            if arguments.name.is_some() {
                let message = "a lock has one name: put the values into it, or write `by = …`";
                return Err(Error::new(name.span(), message));
            }
            arguments.name = Some(name);
            Ok(())
        })?;
        Ok(arguments)
    }
}

impl LockArguments {
    fn named(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let name = name(input, &NAMES, example)?;
        let text = name.to_string();
        match text.as_str() {
            "by" => set_once(&mut self.by, &name, by(input.parse()?)?),
            "wait" => set_once(&mut self.wait, &name, wait(input)?),
            "lease" => set_once(&mut self.lease, &name, lease(input)?),
            "fence" => set_once(&mut self.fence, &name, binding(&text, input)?),
            "guard" => set_once(&mut self.guard, &name, binding(&text, input)?),
            "owner" => set_once(&mut self.owner, &name, input.parse()?),
            "locks" => set_once(&mut self.locks, &name, input.parse()?),
            _ => set_once(&mut self.error, &name, input.parse()?),
        }
    }
}

fn by(expr: Expr) -> syn::Result<Vec<Expr>> {
    match expr {
        Expr::Tuple(tuple) if tuple.elems.is_empty() => {
            Err(Error::new_spanned(tuple, "no values: write `by = (from, to)`, or leave it out"))
        }
        Expr::Tuple(tuple) => Ok(tuple.elems.into_iter().collect()),
        expr => Ok(vec![expr]),
    }
}

fn wait(input: ParseStream<'_>) -> syn::Result<Wait> {
    if input.peek(LitStr) {
        return span(&input.parse()?).map(Wait::For);
    }
    let place = input.span();
    match input.call(Ident::parse_any) {
        Ok(word) if word == "forever" => Ok(Wait::Forever),
        _ => Err(Error::new(place, "write `wait = \"5s\"`, or `wait = forever`")),
    }
}

fn lease(input: ParseStream<'_>) -> syn::Result<Duration> {
    let text: LitStr = input
        .parse()
        .map_err(|error| Error::new(error.span(), "a lease is a text: write `lease = \"30s\"`"))?;
    let span = span(&text)?;
    Lease::new(span).map(|_| span).map_err(|error| Error::new(text.span(), error))
}

fn binding(name: &str, input: ParseStream<'_>) -> syn::Result<Ident> {
    let wrong = |error: Error| {
        let message = format!("`{name}` is a name for the body to use: write `{name} = {name}`");
        Error::new(error.span(), message)
    };
    input.parse().map_err(wrong)
}

/// Parses a duration in the form of a quota's period, or zero.
fn span(text: &LitStr) -> syn::Result<Duration> {
    let written = text.value();
    if ["0s", "0ms"].contains(&written.as_str()) {
        return Ok(Duration::ZERO);
    }
    let quota = if written.contains(char::is_whitespace) {
        None
    } else {
        format!("1 per {written}").parse::<Quota>().ok()
    };
    let wrong = || format!("`{written}` is not a duration: write `500ms`, `5s`, `2m` or `1h`");
    quota.map(|quota| quota.period()).ok_or_else(|| Error::new(text.span(), wrong()))
}

fn example(name: &str) -> &'static str {
    match name {
        "by" => "(from, to)",
        "wait" => "\"5s\"",
        "lease" => "\"30s\"",
        "fence" => "fence",
        "guard" => "held",
        "owner" => "owner",
        "locks" => "self.locks",
        _ => "MyError::from_not_locked",
    }
}
