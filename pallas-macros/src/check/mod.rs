//! Checks of a kernel before its sizes have numbers. A valid kernel never gets an error here.
//!
//! [`spec`] checks signature and specs, [`usage`] how the body uses its operands, [`body`] the shapes in it: it walks
//! the body as Rust would run it, with a [`value`] for each expression and each of the [`parameters`], and applies
//! pallas-ir's own rules ([`rules`], [`blocks`]) to each operation.
mod blocks;
mod body;
mod control;
mod order;
mod own;
mod parameters;
mod places;
mod rules;
mod spec;
#[cfg(test)]
mod tests;
mod usage;
mod value;

use crate::ast::{Errors, Options, Parameter};
use crate::names::Names;
use syn::ItemFn;

/// Returns true for the attribute `#[kernel]`.
pub(crate) fn is_kernel(attribute: &syn::Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|s| s.ident == "kernel")
}

/// Checks a kernel; each mistake is one error at the user's token. Returns the errors that leave the expansion valid
/// Rust; all others are added to `errors`.
pub(crate) fn kernel(
    f: &ItemFn,
    options: &Options,
    parameters: &[Parameter],
    names: &Names,
    errors: &mut Errors,
) -> Errors {
    spec::specs(f, options, parameters, errors);
    usage::refs(f, parameters, errors);
    let mut found = Errors::default();
    usage::operands(f, options, parameters, names, &mut found);
    order::writes(f, options, parameters, &mut found);
    body::shapes(f, options, parameters, names, &mut found);
    found
}
