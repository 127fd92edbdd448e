//! Checks of a kernel before its sizes have numbers. A valid kernel never gets an error here.
//!
//! [`block_specs`] checks signature and specs, [`usage`] how the body uses its operands, [`body`] the shapes in it: it
//! walks the body as Rust would run it, with a [`symbolic_value`] for each expression and each of the [`parameters`],
//! and applies pallas-ir's own rules to each operation ([`language_functions`], [`ref_views`]).
mod block_specs;
mod body;
mod control;
mod language_functions;
mod parameters;
mod ref_views;
mod shadowed_names;
mod symbolic_value;
#[cfg(test)]
mod tests;
mod tracked_variables;
mod usage;
mod write_order;

use crate::ast::{Errors, KernelOptions, Parameter};
use crate::size_language::SizeNames;
use syn::ItemFn;

/// Returns true for the attribute `#[kernel]`.
pub(crate) fn is_kernel(attribute: &syn::Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|s| s.ident == "kernel")
}

/// Checks a kernel; each mistake is one error at the user's token. Returns the errors that leave the expansion valid
/// Rust; all others are added to `errors`.
pub(crate) fn check_kernel(
    f: &ItemFn,
    options: &KernelOptions,
    parameters: &[Parameter],
    names: &SizeNames,
    errors: &mut Errors,
) -> Errors {
    block_specs::check_specs(f, options, parameters, errors);
    usage::check_ref_uses(f, parameters, errors);
    let mut found = Errors::default();
    usage::check_unused_operands(f, options, parameters, names, &mut found);
    write_order::check_write_order(f, options, parameters, &mut found);
    body::check_shapes(f, options, parameters, names, &mut found);
    found
}
