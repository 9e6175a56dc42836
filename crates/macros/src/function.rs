//! The function, and its other `#[limit]`s. The attribute that is expanded first takes all of them,
//! so that they are one decision.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Attribute, Error, ItemFn, Meta, ReturnType};
use tollgate_core::Request;

use crate::arguments::LimitArguments;
use crate::expand::expand;
use crate::key_parts::KeyPart;
use crate::lock;

/// Expands the attribute with these arguments at this item.
pub(crate) fn limit(arguments: TokenStream, item: &TokenStream) -> TokenStream {
    let Ok(mut function) = syn::parse2::<ItemFn>(item.clone()) else {
        let message = "`#[limit]` belongs to a function with a body";
        let error = Error::new(Span::call_site(), message).into_compile_error();
        return quote!(#item #error);
    };
    if function.attrs.iter().any(lock::is_lock) {
        return after_the_lock(&arguments, function);
    }
    let siblings: Vec<Attribute> =
        function.attrs.extract_if(.., |attribute| is_limit(attribute)).collect();
    match all(arguments, siblings, &function) {
        Ok(limits) => expand(&limits, &function),
        // The function stays, so that its callers are not complained about as well.
        Err(error) => {
            let error = error.into_compile_error();
            quote!(#function #error)
        }
    }
}

/// Moves this attribute behind the `#[lock]` of the function, which is then expanded first. In
/// either order of the attributes, the limits are asked before the function waits for its lock.
fn after_the_lock(arguments: &TokenStream, mut function: ItemFn) -> TokenStream {
    let at = function.attrs.iter().position(lock::is_lock);
    let at = at.map_or(0, |at| at + 1);
    function.attrs.insert(at, syn::parse_quote!(#[::tollgate::limit(#arguments)]));
    // What stands before the lock would be expanded before it as well.
    let (locks, others) = function.attrs.into_iter().partition::<Vec<_>, _>(lock::is_lock);
    function.attrs = locks.into_iter().chain(others).collect();
    function.into_token_stream()
}

/// All attributes of a function.
pub(crate) struct FunctionLimits {
    pub(crate) attributes: Vec<LimitArguments>,
}

fn all(
    first: TokenStream,
    siblings: Vec<Attribute>,
    function: &ItemFn,
) -> syn::Result<FunctionLimits> {
    check_signature(function)?;
    let mut attributes = vec![syn::parse2::<LimitArguments>(first)?];
    for sibling in siblings {
        attributes.push(match sibling.meta {
            Meta::List(list) => syn::parse2(list.tokens)?,
            meta => {
                let message = "no limit is given: write `#[limit(\"5 per 1m\")]`";
                return Err(Error::new_spanned(meta, message));
            }
        });
    }
    for attribute in &mut attributes {
        let Some(by) = attribute.by.take() else { continue };
        let settled = by.into_iter().map(|by| by.settle(&function.sig));
        let settled = settled.collect::<syn::Result<Vec<KeyPart>>>()?;
        refuse_twins(&settled)?;
        attribute.by = Some(settled);
    }
    let limits = FunctionLimits { attributes };
    limits.check()?;
    Ok(limits)
}

impl FunctionLimits {
    /// The one value that a function can have, from any of its attributes.
    pub(crate) fn only<T>(&self, of: impl Fn(&LimitArguments) -> Option<&T>) -> Option<&T> {
        self.attributes.iter().find_map(of)
    }

    fn check(&self) -> syn::Result<()> {
        let several = |name: &str, values: Vec<&dyn ToTokens>| match values.get(1) {
            None => Ok(()),
            Some(second) => {
                let message = format!("a function has one `{name}`: it decides all at once");
                Err(Error::new_spanned(second, message))
            }
        };
        let of = |get: fn(&LimitArguments) -> Option<&dyn ToTokens>| {
            self.attributes.iter().filter_map(get).collect::<Vec<_>>()
        };
        several("limiter", of(|it| it.limiter.as_ref().map(|expr| -> &dyn ToTokens { expr })))?;
        several("error", of(|it| it.error.as_ref().map(|expr| -> &dyn ToTokens { expr })))?;
        several("name", of(|it| it.name.as_ref().map(|text| -> &dyn ToTokens { text })))?;
        // An attribute without limits names a rule.
        let limits: usize = self.attributes.iter().map(|it| it.limits.len().max(1)).sum();
        if limits > Request::MAX_CHARGES {
            let message = format!("{limits} limits are more than {}", Request::MAX_CHARGES);
            return Err(Error::new(Span::call_site(), message));
        }
        let mut rules = Vec::new();
        for attribute in &self.attributes {
            let Some(rule) = &attribute.rule else { continue };
            let named = (rule.value(), attribute.domain.as_ref().map(syn::LitStr::value));
            if rules.contains(&named) {
                let message = format!("the rule `{}` would be charged twice", rule.value());
                return Err(Error::new(rule.span(), message));
            }
            rules.push(named);
        }
        Ok(())
    }
}

fn refuse_twins(by: &[KeyPart]) -> syn::Result<()> {
    for (at, one) in by.iter().enumerate() {
        if by.iter().take(at).any(|earlier| earlier.written() == one.written()) {
            let message = format!("`{}` is here twice", one.written());
            return Err(match one {
                KeyPart::Ip(expr) | KeyPart::Value(expr) => Error::new_spanned(expr, message),
                KeyPart::Attribute(_) => Error::new(Span::call_site(), message),
            });
        }
    }
    Ok(())
}

/// Rejects functions that cannot be limited.
fn check_signature(function: &ItemFn) -> syn::Result<()> {
    let signature = &function.sig;
    if let Some(word) = &signature.constness {
        let message = "a `const fn` may run when code is compiled, where nothing can be counted";
        return Err(Error::new_spanned(word, message));
    }
    if let ReturnType::Default = signature.output {
        let message = "a call may be refused: return a `Result<_, E>` where \
                       `E: From<tollgate::Refused>`, such as `Result<(), tollgate::Refused>`";
        return Err(Error::new_spanned(&signature.ident, message));
    }
    Ok(())
}

fn is_limit(attribute: &Attribute) -> bool {
    is_ours(attribute, "limit")
}

/// True if this is Tollgate's attribute of that name, as far as a macro can see.
pub(crate) fn is_ours(attribute: &Attribute, name: &str) -> bool {
    let path = attribute.path();
    let mut names = path.segments.iter().map(|segment| &segment.ident);
    match (names.next(), names.next(), names.next()) {
        (Some(ours), None, _) => ours == name,
        (Some(tollgate), Some(ours), None) => tollgate == "tollgate" && ours == name,
        _ => false,
    }
}
