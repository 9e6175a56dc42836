//! Generates the code: it acquires the lock, runs the body as a future that stops when the lock is
//! lost, and gives the lock back.
//!
//! The lock is a local variable of the function, so it is also given back when the function is
//! cancelled or panics. The body is a future inside the function: an early return in the body
//! becomes the function's result.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{GenericArgument, ItemFn, PathArguments, ReturnType, Type};

use super::arguments::{LockArguments, WAIT, Wait};
use super::template::NamePart;
use crate::expand::{body, by_place, here, optional, refuse};

/// The function under its lock.
pub(super) fn expand(arguments: &LockArguments, function: &ItemFn) -> TokenStream {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let (outer, inner) = by_place(attrs);
    let block = body(block);
    let root = quote!(::tollgate::__private);
    let wait = match arguments.wait.unwrap_or(WAIT) {
        Wait::Forever => quote!(#root::LockWait::Forever),
        Wait::For(span) => {
            let span = duration(span);
            quote!(#root::LockWait::For(#span))
        }
    };
    let lease = optional(arguments.lease.map(duration).as_ref());
    let name = name(arguments);
    let enter = enter(arguments, &root);
    let refuse = refuse(arguments.error.as_ref(), function, "not", &quote!(not_locked));
    let returned = returned(function);
    let held = quote_spanned!(Span::mixed_site()=> held);
    let fence =
        arguments.fence.as_ref().map(|name| quote!(let #name: ::tollgate::Fence = #held.fence();));
    let guard =
        arguments.guard.as_ref().map(|name| quote!(let #name: &::tollgate::LockGuard = #held;));
    let call = quote_spanned!(Span::mixed_site()=> call);
    quote_spanned! {Span::mixed_site()=>
        #(#outer)*
        #vis #sig {
            #(#inner)*
            let lock = {
                fn __tollgate_path() -> &'static ::core::primitive::str {
                    #root::path(&__tollgate_path)
                }
                let mut #call = #root::LockCall::new(__tollgate_path, #wait, #lease);
                #name
                match #enter {
                    ::core::result::Result::Ok(lock) => lock,
                    ::core::result::Result::Err(not) => return #refuse,
                }
            };
            let work = {
                let #held = lock.guard();
                async move {
                    // Says what the future returns before the body is read, for its `?`.
                    #[allow(
                        unreachable_code,
                        clippy::diverging_sub_expression,
                        clippy::empty_loop,
                        clippy::let_and_return,
                        clippy::let_with_type_underscore,
                        clippy::needless_return
                    )]
                    if false {
                        let never: #returned = loop {};
                        return never;
                    }
                    let _ = #held;
                    #fence
                    #guard
                    #block
                }
            };
            let work = lock.guard().protect(work).await;
            match lock.end(work).await {
                ::core::result::Result::Ok(output) => output,
                ::core::result::Result::Err(not) => return #refuse,
            }
        }
    }
}

fn duration(span: Duration) -> TokenStream {
    let (seconds, nanos) = (span.as_secs(), span.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanos))
}

/// Generates the code that builds the name.
fn name(arguments: &LockArguments) -> TokenStream {
    let pieces = arguments.name_parts.iter().map(|piece| match piece {
        NamePart::Text(text) => quote_spanned!(Span::mixed_site()=> call.text(#text);),
        NamePart::Value(value) => {
            let span = here(value);
            quote_spanned!(span=> call.value(&(#value));)
        }
    });
    let parts = arguments.by.iter().flatten().map(|value| {
        let span = here(value);
        quote_spanned!(span=> call.part(&(#value));)
    });
    let owner = arguments.owner.iter().map(|owner| {
        let span = here(owner);
        quote_spanned!(span=> call.owner(&(#owner));)
    });
    quote!(#(#pieces)* #(#parts)* #(#owner)*)
}

/// Generates the call that acquires the lock.
fn enter(arguments: &LockArguments, root: &TokenStream) -> TokenStream {
    match &arguments.locks {
        Some(locks) => {
            let span = here(locks);
            quote_spanned!(span=> (#locks).__enter(call).await)
        }
        None => quote_spanned!(Span::mixed_site()=> #root::enter_lock(call).await),
    }
}

/// The return type in a form that a local variable can have: opaque parts become `_`.
fn returned(function: &ItemFn) -> Type {
    let mut returned = match &function.sig.output {
        ReturnType::Type(_, returned) => (**returned).clone(),
        ReturnType::Default => syn::parse_quote!(()),
    };
    erase(&mut returned);
    returned
}

fn erase(kind: &mut Type) {
    match kind {
        Type::ImplTrait(_) => *kind = syn::parse_quote!(_),
        Type::Path(path) => {
            for segment in &mut path.path.segments {
                let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else {
                    continue;
                };
                for argument in &mut arguments.args {
                    if let GenericArgument::Type(inner) = argument {
                        erase(inner);
                    }
                }
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(erase),
        Type::Reference(reference) => erase(&mut reference.elem),
        Type::Paren(paren) => erase(&mut paren.elem),
        Type::Group(group) => erase(&mut group.elem),
        Type::Array(array) => erase(&mut array.elem),
        _ => {}
    }
}
