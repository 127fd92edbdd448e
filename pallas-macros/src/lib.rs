//! `#[kernel]`: turns a Rust function over blocks into one that traces, launches and returns arrays.
//!
//! The crate is a shell over functions on tokens: [`ast`] and [`attr`] read the signature, [`names`] the sizes, [`check`]
//! judges the specs, [`rewrite`] stages the body's control flow, [`expand`] writes the result.
mod ast;
mod attr;
mod check;
mod expand;
mod names;
mod rewrite;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemFn;
use syn::parse::{ParseStream, Parser};

/// Makes a function over blocks a kernel: see the guide of `pallas_rt`.
#[proc_macro_attribute]
pub fn kernel(attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    kernel_tokens(attr.into(), item.into()).into()
}

/// [`kernel`] on tokens that need no compiler.
fn kernel_tokens(attr: TokenStream, item: TokenStream) -> TokenStream {
    match syn::parse2::<ItemFn>(item.clone()) {
        Ok(f) => expand::expand(attr, f),
        Err(e) => broken(attr, item, &e),
    }
}

/// The body does not parse (rustc has said so already): keep the signature, so that callers resolve.
fn broken(attr: TokenStream, item: TokenStream, e: &syn::Error) -> TokenStream {
    type Head = (Vec<syn::Attribute>, syn::Visibility, syn::Signature, TokenStream);
    let head = |input: ParseStream<'_>| -> syn::Result<Head> {
        Ok((input.call(syn::Attribute::parse_outer)?, input.parse()?, input.parse()?, input.parse()?))
    };
    let error = e.to_compile_error();
    let Ok((attrs, vis, sig, _)) = head.parse2(item) else { return error };
    // Every name is mentioned, so that nothing is called unused because of the broken body.
    let names = sig.inputs.iter().filter_map(|i| match i {
        syn::FnArg::Typed(t) => Some(t.pat.to_token_stream()),
        syn::FnArg::Receiver(_) => None,
    });
    let block = syn::parse_quote!({ #(let _ = #names;)* });
    let stub = expand::expand(attr, ItemFn { attrs, vis, sig, block: Box::new(block) });
    quote!(#stub const _: () = { #error };)
}
