//! Expands `#[limit]`: generates the function, with a check at the beginning of its body.
//!
//! The signature stays, so arguments, `self` and generics are in scope for expressions in the
//! attribute. Permits are a local variable of the body: they are dropped when the function ends, by
//! a return, a panic or a cancellation.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{AttrStyle, Attribute, Block, Expr, Ident, ItemFn, ReturnType};

use crate::arguments::LimitArguments;
use crate::function::FunctionLimits;
use crate::key_parts::KeyPart;

/// The function under its limits.
pub(crate) fn expand(limits: &FunctionLimits, function: &ItemFn) -> TokenStream {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let (outer, inner) = by_place(attrs);
    let block = body(block);
    let root = quote!(::tollgate::__private);
    let attributes = limits.attributes.iter().map(|attribute| constant(attribute, &root));
    let values = limits.attributes.iter().flat_map(values);
    let values = values.map(|value| {
        let span = here(value);
        quote_spanned!(span=> call.value(&(#value));)
    });
    let costs = limits.attributes.iter().enumerate().filter_map(|(at, attribute)| {
        let cost = attribute.cost.as_ref()?;
        let span = here(cost);
        Some(quote_spanned!(span=> call.cost(#at, #cost);))
    });
    let name = sig.ident.to_string();
    let name = name.trim_start_matches("r#");
    let path = match limits.only(|attribute| attribute.name.as_ref()) {
        Some(path) => quote!(#path),
        None => quote!(#root::path(&__tollgate_path)),
    };
    let enter = enter(limits, function, &root);
    let error = limits.only(|attribute| attribute.error.as_ref());
    let refuse = refuse(error, function, "refused", &quote!(refuse));
    let call = quote_spanned!(Span::mixed_site()=> call);
    quote_spanned! {Span::mixed_site()=>
        #(#outer)*
        #vis #sig {
            #(#inner)*
            let _permits = {
                fn __tollgate_path() -> &'static ::core::primitive::str {
                    #path
                }
                static __TOLLGATE_SITE: #root::Site =
                    #root::Site::new(__tollgate_path, #name, &[#(#attributes),*]);
                #[allow(unused_mut)]
                let mut #call = #root::LimitCall::new(&__TOLLGATE_SITE);
                #(#values)*
                #(#costs)*
                match #enter {
                    ::core::result::Result::Ok(permits) => permits,
                    ::core::result::Result::Err(refused) => return #refuse,
                }
            };
            #block
        }
    }
}

/// The attributes in front of a function, and those inside its body.
pub(crate) fn by_place(attributes: &[Attribute]) -> (Vec<&Attribute>, Vec<&Attribute>) {
    attributes.iter().partition(|attribute| matches!(attribute.style, AttrStyle::Outer))
}

/// The body of a function, for the end of another body. The macro adds braces of its own; otherwise
/// the compiler would warn about unnecessary braces around a body on one line.
pub(crate) fn body(block: &Block) -> Group {
    let statements = &block.stmts;
    let mut body = Group::new(Delimiter::Brace, quote!(#(#statements)*));
    body.set_span(block.brace_token.span.join().resolved_at(Span::mixed_site()));
    body
}

/// The call that asks for permits.
fn enter(limits: &FunctionLimits, function: &ItemFn, root: &TokenStream) -> TokenStream {
    let limiter = limits.only(|attribute| attribute.limiter.as_ref());
    let is_async = function.sig.asyncness.is_some();
    let span = limiter.map_or(Span::mixed_site(), here);
    match (limiter, is_async) {
        (Some(limiter), true) => quote_spanned!(span=> (#limiter).__enter(call).await),
        (Some(limiter), false) => quote_spanned!(span=> (#limiter).__enter_now(&call)),
        (None, true) => quote_spanned!(span=> #root::enter(call).await),
        (None, false) => quote_spanned!(span=> #root::enter_now(&call)),
    }
}

/// Generates the return of a call that does not run: `given`, the variable with the reason,
/// converted into the function's error. `convert` does that unless the attribute has an `error`.
/// The code has the span of the return type, so compiler errors point there.
pub(crate) fn refuse(
    error: Option<&Expr>,
    function: &ItemFn,
    given: &str,
    convert: &TokenStream,
) -> TokenStream {
    let given = Ident::new(given, Span::mixed_site());
    if let Some(error) = error {
        let span = here(error);
        return quote_spanned!(span=> ::core::result::Result::Err((#error)(#given)));
    }
    let span = match &function.sig.output {
        ReturnType::Type(_, returned) => returned.span().resolved_at(Span::mixed_site()),
        ReturnType::Default => Span::mixed_site(),
    };
    quote_spanned!(span=> ::tollgate::__private::#convert(#given))
}

fn constant(attribute: &LimitArguments, root: &TokenStream) -> TokenStream {
    let message = optional(attribute.message.as_ref());
    let by = attribute.by.as_ref().map(|by| by.iter().map(|by| part(by, root)));
    if let Some(rule) = &attribute.rule {
        let domain = optional(attribute.domain.as_ref());
        let by = by.map(|by| quote!(&[#(#by),*]));
        let by = optional(by.as_ref());
        return quote! {
            #root::LimitAttribute::Rule { domain: #domain, rule: #rule, by: #by, message: #message }
        };
    }
    let limits = attribute.limits.iter().map(|limit| {
        let (name, quota) = (optional(limit.name.as_ref()), &limit.quota);
        let algorithm = optional(limit.algorithm.as_ref());
        quote!(#root::QuotaText { name: #name, quota: #quota, algorithm: #algorithm })
    });
    let by = by.into_iter().flatten();
    quote!(#root::LimitAttribute::Limits {
        limits: &[#(#limits),*],
        by: &[#(#by),*],
        message: #message,
    })
}

fn part(by: &KeyPart, root: &TokenStream) -> TokenStream {
    match by {
        KeyPart::Ip(_) => quote!(#root::KeyPart::Attribute("ip")),
        KeyPart::Attribute(name) => quote!(#root::KeyPart::Attribute(#name)),
        KeyPart::Value(_) => quote!(#root::KeyPart::Value),
    }
}

fn values(attribute: &LimitArguments) -> impl Iterator<Item = &Expr> {
    attribute.by.iter().flatten().filter_map(|by| match by {
        KeyPart::Value(expr) => Some(expr),
        KeyPart::Ip(_) | KeyPart::Attribute(_) => None,
    })
}

pub(crate) fn optional<T: quote::ToTokens>(value: Option<&T>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// The span of an expression in the attribute, with the names of this macro. Errors point there,
/// and lints know that the rest is generated.
pub(crate) fn here(written: &Expr) -> Span {
    written.span().resolved_at(Span::mixed_site())
}
