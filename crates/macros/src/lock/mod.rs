//! `#[lock("order:{id}")]`: the function as it is, whose body runs under a lock.
//!
//! | File | Holds |
//! |---|---|
//! | `arguments` | the text between the parentheses |
//! | `template` | the name of the lock, with values in it |
//! | `expand` | the code |
//!
//! Only `async` functions can have a lock: any other cannot be stopped when its lock is lost.

mod arguments;
mod expand;
mod template;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Attribute, Error, ItemFn, ReturnType};

use crate::function::is_ours;

/// Expands the attribute with these arguments at this item.
pub(crate) fn lock(arguments: TokenStream, item: &TokenStream) -> TokenStream {
    let Ok(function) = syn::parse2::<ItemFn>(item.clone()) else {
        let message = "`#[lock]` belongs to an `async fn` with a body";
        let error = Error::new(Span::call_site(), message).into_compile_error();
        return quote!(#item #error);
    };
    match check(&function).and_then(|()| arguments::read(arguments, &function.sig)) {
        Ok(arguments) => expand::expand(&arguments, &function),
        // The function stays, so that its callers are not complained about as well.
        Err(error) => {
            let error = error.into_compile_error();
            let (attrs, others) = without_locks(&function);
            quote!(#(#attrs)* #others #error)
        }
    }
}

/// True if this is the attribute of this module, as far as a macro can see.
pub(crate) fn is_lock(attribute: &Attribute) -> bool {
    is_ours(attribute, "lock")
}

/// The function without its other locks, for which errors were reported.
fn without_locks(function: &ItemFn) -> (Vec<&Attribute>, ItemFn) {
    let attrs = function.attrs.iter().filter(|attribute| !is_lock(attribute)).collect();
    (attrs, ItemFn { attrs: Vec::new(), ..function.clone() })
}

/// Rejects functions that cannot run under a lock.
fn check(function: &ItemFn) -> syn::Result<()> {
    let signature = &function.sig;
    if let Some(other) = function.attrs.iter().find(|attribute| is_lock(attribute)) {
        let message = "a function has one `#[lock]`: of two, each could be held by somebody who \
                       waits for the other. Take one lock for both, or call a function that has \
                       the other";
        return Err(Error::new_spanned(other, message));
    }
    if signature.asyncness.is_none() {
        let message = "`#[lock]` belongs to an `async fn`: another cannot be stopped when its lock \
                       is lost, and would block its thread while it waits. Make it `async`; \
                       `#[async_trait]` makes a function that is not, `async fn` of a trait needs \
                       no such help";
        return Err(Error::new_spanned(signature.fn_token, message));
    }
    if let ReturnType::Default = signature.output {
        let message = "there may be no lock: return a `Result<_, E>` where \
                       `E: From<tollgate::NotLocked>`, such as `Result<(), tollgate::NotLocked>`";
        return Err(Error::new_spanned(&signature.ident, message));
    }
    Ok(())
}
