//! The macros `#[kernel]`, which makes a Rust function over blocks a kernel that traces, launches and returns arrays,
//! and `#[derive(Tree)]` for structs and enums of arrays.
//!
//! They are functions on tokens, which tests call without a compiler: [`ast`] and [`attr`] read the signature,
//! [`size_language`] the sizes, [`check`] checks specs and body, [`tune`] reads candidates, [`rewrite`] stages the
//! body's control flow, [`expand`] writes the result. [`derive_tree`] is `#[derive(Tree)]`.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout)]
mod ast;
mod attr;
mod check;
mod derive_tree;
mod expand;
mod rewrite;
mod size_language;
#[cfg(test)]
mod tests;
mod tune;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemFn;
use syn::parse::{ParseStream, Parser};

/// Makes a function over blocks a kernel, which callers use as a function of arrays that returns arrays. The guide of
/// `pallas_rt` explains each of these parts by an example.
///
/// | option of `#[kernel(..)]` | meaning |
/// |---|---|
/// | `grid = (cdiv(M, 8), N)` | number of programs along each axis, the slowest first; `()` is one program |
/// | `semantics = (parallel, arbitrary)` | one per axis, `parallel` where it is left out: programs of an `arbitrary` axis are steps, which run in order and share scratch |
/// | `assume(A == B)` | sizes that are equal: shapes in the body may depend on it, and each call checks it |
/// | `allow(overflow)`, `allow(lost_store)` | faults of the strict interpreter that are meant: integers of 8 and 16 bits wrap around; a step replaces what an earlier one stored |
/// | `tune(B = [32, 64])`, `tune_if = B * C <= 1024` | candidates for const generics; a function with the suffix `_tuned` times them |
/// | `crate = path` | the path of `pallas_rt`, if that is renamed |
///
/// | parameter | meaning |
/// |---|---|
/// | `#[block([M, N] => [8, N], \|i, j\| (i, 0), options)] x: In<T>` | an array that is read by blocks; without the attribute, all of it |
/// | the same with `Out<T>` | a result: no argument of the call, which returns it |
/// | `#[prefetch([N])] t: Prefetch<i32>` | a table that index maps may read, element by element |
/// | `#[scratch([8, N])] s: Scratch<T>` | a buffer that lives as long as the steps of a program |
/// | `#[dim] N: usize` | the size of a dimension that no array has |
/// | `#[fixed] f: T` | a value of the host, known while the kernel is traced; each different value compiles anew |
/// | `a: f32` | a number or `bool` that is known only when the kernel runs |
///
/// | option of `#[block(..)]` | meaning |
/// |---|---|
/// | `fill = 0.0` | what a load sees outside of the array; undefined without it |
/// | `buffered = 2` | number of an input's blocks that are on their way at once, 1 to 3 |
/// | `empty = 0.0` | elements of an output of a launch without programs, 0 without it |
/// | `alias = x` | the output takes over the memory of the input `x` |
#[proc_macro_attribute]
pub fn kernel(attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    kernel_tokens(attr.into(), item.into()).into()
}

/// Implements `pallas_rt::tree::Tree` (a value whose leaves are arrays) for a struct or an enum whose fields are trees.
///
/// | option | meaning |
/// |---|---|
/// | `#[tree(fixed)]` on a field | no leaf: its value is part of the structure; it implements `Clone`, `Hash` and `Debug` |
/// | `#[tree(crate = path)]` on the type | the path of `pallas_rt`, if that is renamed |
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive_tree::derive(item.into()).into()
}

/// Expands [`kernel`] on tokens of `proc_macro2`, which exist outside of the compiler, in tests.
fn kernel_tokens(attr: TokenStream, item: TokenStream) -> TokenStream {
    match syn::parse2::<ItemFn>(item.clone()) {
        Ok(f) => expand::expand(attr, f, None),
        Err(e) => match not_a_function_error(&item) {
            Some(e) => {
                let error = e.to_compile_error();
                quote!(#item const _: () = { #error };)
            }
            None => expand_broken_function(attr, item, e),
        },
    }
}

/// Returns the error about an item that is not a function; `None` if the item does not parse.
fn not_a_function_error(item: &TokenStream) -> Option<syn::Error> {
    let at = match syn::parse2(item.clone()).ok()? {
        syn::Item::Struct(i) => i.struct_token.to_token_stream(),
        syn::Item::Enum(i) => i.enum_token.to_token_stream(),
        syn::Item::Impl(i) => i.impl_token.to_token_stream(),
        syn::Item::Mod(i) => i.mod_token.to_token_stream(),
        syn::Item::Trait(i) => i.trait_token.to_token_stream(),
        syn::Item::Const(i) => i.const_token.to_token_stream(),
        syn::Item::Static(i) => i.static_token.to_token_stream(),
        syn::Item::Type(i) => i.type_token.to_token_stream(),
        syn::Item::Use(i) => i.use_token.to_token_stream(),
        syn::Item::ForeignMod(i) => i.abi.to_token_stream(),
        _ => return None,
    };
    let message = "a kernel is a function\n  help: write `#[kernel(..)]` in front of each `fn` that is one";
    Some(syn::Error::new_spanned(at, message))
}

/// Expands a function whose body does not parse (rustc has reported it): keeps the signature, so that callers resolve.
fn expand_broken_function(attr: TokenStream, item: TokenStream, parse_error: syn::Error) -> TokenStream {
    type FunctionHead = (Vec<syn::Attribute>, syn::Visibility, syn::Signature, TokenStream);
    let head = |input: ParseStream<'_>| -> syn::Result<FunctionHead> {
        Ok((input.call(syn::Attribute::parse_outer)?, input.parse()?, input.parse()?, input.parse()?))
    };
    let Ok((attrs, vis, sig, rest)) = head.parse2(item) else { return parse_error.to_compile_error() };
    if rest.to_string() == ";" {
        let message = "a kernel has a body\n  help: a trait can't declare one; make it a function";
        return syn::Error::new_spanned(&sig.ident, message).to_compile_error();
    }
    // Every name is mentioned, so that nothing is called unused because of the broken body.
    let names = sig.inputs.iter().filter_map(|i| match i {
        syn::FnArg::Typed(t) => Some(t.pat.to_token_stream()),
        syn::FnArg::Receiver(_) => None,
    });
    let block = syn::parse_quote!({ #(let _ = #names;)* });
    expand::expand(attr, ItemFn { attrs, vis, sig, block: Box::new(block) }, Some(parse_error))
}
