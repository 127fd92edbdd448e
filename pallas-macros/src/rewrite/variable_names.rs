//! Naming of values: in IR and shaders a value has the name of the variable it is first assigned to.
use super::state::BodyRewriter;
use super::tokens::{first_span, last_span, spanned_call, strip_parentheses};
use quote::{quote, quote_spanned};
use syn::{Expr, Pat};

/// Names for the value of a `let`'s initialiser, which IR and shaders show: one for the whole value, one for each entry
/// of a tuple, or none.
pub(super) enum ValueNames {
    /// The whole value gets this name.
    Whole(String),
    /// The entries of a tuple get names.
    Parts(Vec<ValueNames>),
    /// No part: there is no name, or the expression would mean something else as a function's argument.
    Nothing,
}

/// Matches the variables of a pattern with the expressions that compute their values.
pub(super) fn match_value_names(pattern: &Pat, value: &Expr) -> ValueNames {
    match (pattern, value) {
        (Pat::Ident(p), value) if p.by_ref.is_none() && p.subpat.is_none() && can_be_argument(value) => {
            let name = p.ident.to_string();
            // Shaders are ASCII.
            if name.is_ascii() {
                ValueNames::Whole(name.trim_start_matches("r#").to_string())
            } else {
                ValueNames::Nothing
            }
        }
        (Pat::Tuple(p), Expr::Tuple(values)) if p.elems.len() == values.elems.len() => {
            ValueNames::Parts(p.elems.iter().zip(&values.elems).map(|(p, value)| match_value_names(p, value)).collect())
        }
        _ => ValueNames::Nothing,
    }
}

/// Returns true for an expression that can be a function's argument; a reference cannot, as its referent would end too
/// early.
fn can_be_argument(value: &Expr) -> bool {
    match strip_parentheses(value) {
        Expr::MethodCall(_) | Expr::Call(_) | Expr::Binary(_) => true,
        Expr::Unary(u) => !matches!(u.op, syn::UnOp::Deref(_)),
        _ => false,
    }
}

impl BodyRewriter {
    /// Wraps a rewritten value, or each entry of a tuple of values, in a call that gives it its name in `given`.
    pub(super) fn wrap_with_names(&self, given: &ValueNames, value: &mut Expr) {
        match (given, value) {
            (ValueNames::Whole(name), value) => {
                // From the value's first token to its last, as rustc's carets shall be.
                let (from, to) = (first_span(value), last_span(value));
                let [named, so_far] = [quote!(named), quote!(so_far)].map(|item| self.item_path(from, item));
                *value = Expr::Verbatim(spanned_call(to, named, quote_spanned!(from=> #name, #so_far(), #value)));
            }
            (ValueNames::Parts(parts), Expr::Tuple(values)) => {
                parts.iter().zip(&mut values.elems).for_each(|(given, value)| self.wrap_with_names(given, value));
            }
            _ => {}
        }
    }
}
