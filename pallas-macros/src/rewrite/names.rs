//! Naming of values: in IR and shaders a value has the name of the variable it is first assigned to.
use super::state::Rewrite;
use super::tokens::{bare, call, first, last};
use quote::{quote, quote_spanned};
use syn::{Expr, Pat};

/// Parts of an initialiser that get a variable's name.
pub(super) enum Given {
    /// The whole value gets this name.
    Whole(String),
    /// The entries of a tuple get names.
    Parts(Vec<Given>),
    /// No part: there is no name, or the expression would mean something else as a function's argument.
    Nothing,
}

/// Matches the variables of a pattern with the expressions that compute their values.
pub(super) fn given(pattern: &Pat, value: &Expr) -> Given {
    match (pattern, value) {
        (Pat::Ident(p), value) if p.by_ref.is_none() && p.subpat.is_none() && computes(value) => {
            let name = p.ident.to_string();
            // Shaders are ASCII.
            if name.is_ascii() { Given::Whole(name.trim_start_matches("r#").to_string()) } else { Given::Nothing }
        }
        (Pat::Tuple(p), Expr::Tuple(values)) if p.elems.len() == values.elems.len() => {
            Given::Parts(p.elems.iter().zip(&values.elems).map(|(p, value)| given(p, value)).collect())
        }
        _ => Given::Nothing,
    }
}

/// Returns true for an expression that can be a function's argument; a reference cannot, as its referent would end too
/// early.
fn computes(value: &Expr) -> bool {
    match bare(value) {
        Expr::MethodCall(_) | Expr::Call(_) | Expr::Binary(_) => true,
        Expr::Unary(u) => !matches!(u.op, syn::UnOp::Deref(_)),
        _ => false,
    }
}

impl Rewrite {
    /// Wraps rewritten values in calls of the function that names them.
    pub(super) fn name(&self, given: &Given, value: &mut Expr) {
        match (given, value) {
            (Given::Whole(name), value) => {
                // From the value's first token to its last, as rustc's carets shall be.
                let (from, to) = (first(value), last(value));
                let [named, so_far] = [quote!(named), quote!(so_far)].map(|item| self.path(from, item));
                *value = Expr::Verbatim(call(to, named, quote_spanned!(from=> #name, #so_far(), #value)));
            }
            (Given::Parts(parts), Expr::Tuple(values)) => {
                parts.iter().zip(&mut values.elems).for_each(|(given, value)| self.name(given, value));
            }
            _ => {}
        }
    }
}
