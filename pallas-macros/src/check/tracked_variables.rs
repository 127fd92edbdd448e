//! Variables of a body: their values, and which of them change where the check cannot see.
use super::symbolic_value::SymbolicValue;
use crate::ast::is_assigning;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::HashSet;
use syn::visit::{self, Visit};
use syn::{Expr, Ident, Pat};

/// A variable in scope, with its value.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    name: String,
    /// True if it may get another value: it is `mut`, or declared without a value.
    pub(super) mutable: bool,
    /// Value that it holds now.
    pub(super) value: SymbolicValue,
    /// Tokens of the expression that gave it this value.
    pub(super) given: TokenStream,
}

/// The variables in scope, innermost last.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(pub(super) Vec<Variable>);

impl Variables {
    pub(super) fn declare(&mut self, name: &Ident, is_mutable: bool, value: SymbolicValue) {
        self.0.push(Variable { name: name.to_string(), mutable: is_mutable, value, given: name.to_token_stream() });
    }
    pub(super) fn get(&self, name: &Ident) -> Option<&Variable> {
        self.0.iter().rev().find(|v| *name == v.name)
    }
    pub(super) fn set(&mut self, name: &Ident, value: SymbolicValue, source: TokenStream) {
        if let Some(v) = self.0.iter_mut().rev().find(|v| *name == v.name) {
            (v.value, v.given) = (value, source);
        }
    }
    /// Marks the variables from index `from` on as declared without a value: they may be assigned although they are not
    /// `mut`.
    pub(super) fn mark_as_assigned_later(&mut self, from: usize) {
        self.0[from..].iter_mut().for_each(|v| v.mutable = true);
    }
    /// Sets a variable to unknown, if it is mutable.
    pub(super) fn forget_value(&mut self, name: &Ident) {
        if let Some(v) = self.0.iter_mut().rev().find(|v| *name == v.name && v.mutable) {
            v.value = SymbolicValue::Unknown;
        }
    }
    /// Sets to unknown the mutable variables that some code changes.
    pub(super) fn forget_changed_values(&mut self, changed: &ChangedVariables) {
        let names = [&changed.assigned, &changed.called];
        let forgotten = |v: &&mut Variable| v.mutable && names.iter().any(|n| n.contains(&v.name));
        self.0.iter_mut().filter(forgotten).for_each(|v| v.value = SymbolicValue::Unknown);
    }
    /// Declares a pattern's names, with parts of the value where pattern and value have the same form, else with
    /// unknown values.
    pub(super) fn bind_pattern(&mut self, pattern: &Pat, value: SymbolicValue) {
        match (pattern, value) {
            (Pat::Ident(id), value) if id.subpat.is_none() => {
                self.declare(&id.ident, id.mutability.is_some(), value);
            }
            (Pat::Type(t), value) => self.bind_pattern(&t.pat, value),
            (Pat::Paren(p), value) => self.bind_pattern(&p.pat, value),
            (Pat::Tuple(syn::PatTuple { elems, .. }) | Pat::Slice(syn::PatSlice { elems, .. }), value) => match value {
                SymbolicValue::Sequence(parts) if parts.len() == elems.len() && !elems.iter().any(is_rest_pattern) => {
                    elems.iter().zip(parts).for_each(|(p, v)| self.bind_pattern(p, v));
                }
                _ => elems.iter().for_each(|p| self.bind_pattern(p, SymbolicValue::Unknown)),
            },
            (other, _) => {
                struct PatternNames<'a>(&'a mut Variables);
                impl Visit<'_> for PatternNames<'_> {
                    fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
                        self.0.declare(&p.ident, p.mutability.is_some(), SymbolicValue::Unknown);
                        visit::visit_pat_ident(self, p);
                    }
                }
                PatternNames(self).visit_pat(other);
            }
        }
    }
}

fn is_rest_pattern(p: &Pat) -> bool {
    matches!(p, Pat::Rest(_)) || matches!(p, Pat::Ident(id) if id.subpat.is_some())
}

/// Strips parentheses, and the invisible groups of `macro_rules!`.
pub(super) fn strip_parentheses(mut e: &Expr) -> &Expr {
    loop {
        e = match e {
            Expr::Paren(p) => &p.expr,
            Expr::Group(p) => &p.expr,
            e => return e,
        }
    }
}

/// Returns the variable that a place expression is, or is a part of; `None` if there is none.
pub(super) fn root_variable(e: &Expr) -> Option<&Ident> {
    match strip_parentheses(e) {
        Expr::Path(p) => p.path.get_ident(),
        Expr::Field(f) => root_variable(&f.base),
        Expr::Index(i) => root_variable(&i.expr),
        Expr::Unary(u) if matches!(u.op, syn::UnOp::Deref(_)) => root_variable(&u.expr),
        _ => None,
    }
}

/// Names of the variables that some code changes.
#[derive(Default)]
pub(super) struct ChangedVariables {
    /// Variables that are assigned.
    pub(super) assigned: HashSet<String>,
    /// Receivers of methods, which may borrow them mutably if they are `mut`.
    pub(super) called: HashSet<String>,
}

impl ChangedVariables {
    pub(super) fn from_visit(visit: impl FnOnce(&mut Self)) -> ChangedVariables {
        let mut found = ChangedVariables::default();
        visit(&mut found);
        found
    }
    fn add_assigned(&mut self, e: &Expr) {
        match strip_parentheses(e) {
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.add_assigned(e)),
            Expr::Array(t) => t.elems.iter().for_each(|e| self.add_assigned(e)),
            e => self.assigned.extend(root_variable(e).map(Ident::to_string)),
        }
    }
}
impl Visit<'_> for ChangedVariables {
    fn visit_expr_assign(&mut self, a: &syn::ExprAssign) {
        self.add_assigned(&a.left);
        visit::visit_expr_assign(self, a);
    }
    fn visit_expr_binary(&mut self, b: &syn::ExprBinary) {
        if is_assigning(&b.op) {
            self.add_assigned(&b.left);
        }
        visit::visit_expr_binary(self, b);
    }
    fn visit_expr_method_call(&mut self, m: &syn::ExprMethodCall) {
        self.called.extend(root_variable(&m.receiver).map(Ident::to_string));
        visit::visit_expr_method_call(self, m);
    }
}

/// Names whose meaning or value the check cannot follow: such variables and functions are unknown.
#[derive(Default)]
pub(super) struct UntrackedNames {
    names: HashSet<String>,
    /// Receivers of methods that closures call.
    called: HashSet<String>,
    /// True if every name is unknown, because of `ref mut` or a glob import.
    everything: bool,
}

impl UntrackedNames {
    pub(super) fn from_body(body: &syn::Block) -> UntrackedNames {
        let mut unseen = UntrackedNames::default();
        unseen.visit_block(body);
        unseen
    }
    /// Adds names to those that the check cannot follow.
    pub(super) fn with_names(mut self, names: impl IntoIterator<Item = String>) -> UntrackedNames {
        self.names.extend(names);
        self
    }
    /// Returns true if the kernel's source may have a function of its own by this name, which hides the language's.
    pub(super) fn may_shadow_function(&self, name: &Ident) -> bool {
        self.everything || self.names.contains(&name.to_string())
    }
    /// Returns true if a variable may change where the check cannot follow: in a closure, by a mutable reference or in
    /// an unknown macro.
    pub(super) fn may_change(&self, v: &Variable) -> bool {
        self.everything || self.names.contains(&v.name) || v.mutable && self.called.contains(&v.name)
    }
    /// Records every name in the tokens.
    fn add_mentioned(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(i) => {
                    self.names.insert(i.to_string());
                }
                TokenTree::Group(g) => self.add_mentioned(g.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}
impl Visit<'_> for UntrackedNames {
    fn visit_expr_closure(&mut self, c: &syn::ExprClosure) {
        let changed = ChangedVariables::from_visit(|a| a.visit_expr(&c.body));
        self.names.extend(changed.assigned);
        self.called.extend(changed.called);
        visit::visit_expr_closure(self, c);
    }
    fn visit_expr_reference(&mut self, r: &syn::ExprReference) {
        if r.mutability.is_some() {
            self.names.extend(root_variable(&r.expr).map(Ident::to_string));
        }
        visit::visit_expr_reference(self, r);
    }
    fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
        self.everything |= p.by_ref.is_some() && p.mutability.is_some();
        visit::visit_pat_ident(self, p);
    }
    fn visit_macro(&mut self, m: &syn::Macro) {
        const HARMLESS_MACROS: [&str; 12] = [
            "assert",
            "assert_eq",
            "assert_ne",
            "debug_assert",
            "debug_assert_eq",
            "vec",
            "print",
            "println",
            "eprint",
            "eprintln",
            "format",
            "matches",
        ];
        if !m.path.segments.last().is_some_and(|s| HARMLESS_MACROS.iter().any(|h| s.ident == h)) {
            self.add_mentioned(m.tokens.clone());
        }
    }
    fn visit_item(&mut self, item: &syn::Item) {
        match item {
            syn::Item::Use(u) => {
                let text = u.to_token_stream().to_string();
                self.everything |= text.contains('*') && !text.contains("pallas");
                self.add_mentioned(u.to_token_stream());
            }
            // Names of its own, and perhaps the item's name: too many are no harm.
            other => self.add_mentioned(other.to_token_stream()),
        }
    }
}
