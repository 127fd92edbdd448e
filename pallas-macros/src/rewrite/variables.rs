//! Variables in scope, and how each open region uses those declared outside of it.
//!
//! A region *carries* the `mut` variables that it assigns or borrows mutably, and *freezes* every other one that it
//! mentions: a shared borrow, so that a mutation nobody sees here is rustc's error.
use super::state::{BodyRewriter, Region, RegionKind, ScopedVariable};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use std::collections::{BTreeMap, HashSet};
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Ident, Pat};

impl BodyRewriter {
    pub(crate) fn declare(&mut self, i: &Ident) {
        let (name, size) = (i.to_string(), self.sizes.contains(&i.to_string()));
        self.vars.push(ScopedVariable { name, late: false, fixed: false, mutable: false, size });
    }
    /// Declares the names of a pattern; with `is_assigned_later` they are declared without a value.
    pub(super) fn bind_pattern(&mut self, p: &Pat, is_assigned_later: bool) {
        struct PatternNames<'a>(&'a mut Vec<ScopedVariable>, bool);
        impl Visit<'_> for PatternNames<'_> {
            fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
                let (name, late, fixed) = (p.ident.to_string(), self.1, p.mutability.is_none());
                self.0.push(ScopedVariable { name, late, fixed, mutable: !fixed, size: false });
                visit::visit_pat_ident(self, p);
            }
            fn visit_expr(&mut self, _: &Expr) {}
        }
        PatternNames(&mut self.vars, is_assigned_later).visit_pat(p);
    }
    /// Returns the index of the innermost variable of this name; `None` if none is in scope.
    pub(super) fn find_variable(&self, name: &str) -> Option<usize> {
        self.vars.iter().rposition(|v| v.name == name)
    }
    /// Returns true if a name is a dimension that no variable hides.
    pub(super) fn is_dim(&self, name: &str) -> bool {
        self.dims.contains(name) && self.vars.iter().filter(|v| v.name == name).count() == 1
    }
    /// Runs `f` in a scope of its own: forgets variables declared by it.
    pub(super) fn run_in_scope<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let outside = self.vars.len();
        let result = f(self);
        self.vars.truncate(outside);
        result
    }
    /// Returns true if literals, const generics and `#[fixed]` parameters alone determine the expression, so the host
    /// knows it.
    pub(super) fn is_host_known(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(_) => true,
            Expr::Paren(p) => self.is_host_known(&p.expr),
            Expr::Unary(u) => self.is_host_known(&u.expr),
            Expr::Binary(b) => self.is_host_known(&b.left) && self.is_host_known(&b.right),
            Expr::Tuple(t) => t.elems.iter().all(|e| self.is_host_known(e)),
            Expr::Path(p) => p.path.get_ident().is_some_and(|i| {
                self.host.contains(&i.to_string()) && self.vars.iter().filter(|v| i == &v.name).count() < 2
            }),
            Expr::Macro(m) => m.mac.path.is_ident("cfg"),
            _ => false,
        }
    }

    /// Returns true for a host `usize` computed from const generics, variables and dimensions that size blocks.
    pub(super) fn is_size_expression(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(l) => matches!(&l.lit, syn::Lit::Int(n) if n.suffix() == "usize"),
            Expr::Paren(p) => self.is_size_expression(&p.expr),
            Expr::Group(p) => self.is_size_expression(&p.expr),
            Expr::Path(p) => p.path.get_ident().map(Ident::to_string).is_some_and(|name| {
                self.find_variable(&name).map_or_else(|| self.sizes.contains(&name), |at| self.vars[at].size)
            }),
            Expr::Binary(b) => {
                let literal = |e: &Expr| matches!(e, Expr::Lit(_));
                let sides = [&*b.left, &*b.right];
                let arithmetic =
                    matches!(b.op, BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_) | BinOp::Rem(_));
                arithmetic
                    && sides.iter().any(|e| self.is_size_expression(e))
                    && sides.iter().all(|e| literal(e) || self.is_size_expression(e))
            }
            _ => false,
        }
    }

    /// Records a read of a variable, for the regions inside of its scope.
    pub(super) fn record_read(&mut self, i: &Ident) {
        let name = i.to_string();
        if self.is_dim(&name) {
            return;
        }
        let Some(at) = self.find_variable(&name).filter(|&at| !self.vars[at].late) else { return };
        for r in self.regions.iter_mut().filter(|r| r.outer_variables > at) {
            r.seen.entry(name.clone()).or_insert_with(|| i.clone());
        }
    }
    /// Records an assignment or mutable borrow of a place: open regions inside of the scope of its variable then carry
    /// the variable, that is, hand its value in and out.
    pub(super) fn record_assignment(&mut self, place: &Expr) {
        match place {
            Expr::Path(p) => {
                if let Some(i) = p.path.get_ident() {
                    self.record_variable_assignment(i);
                }
            }
            Expr::Field(f) => self.record_assignment(&f.base),
            Expr::Index(f) => self.record_assignment(&f.expr),
            Expr::Paren(p) => self.record_assignment(&p.expr),
            Expr::Group(p) => self.record_assignment(&p.expr),
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.record_assignment(e)),
            Expr::Array(t) => t.elems.iter().for_each(|e| self.record_assignment(e)),
            _ => {}
        }
    }
    /// Records an assignment to a variable, for the regions inside of its scope.
    fn record_variable_assignment(&mut self, i: &Ident) {
        let name = i.to_string();
        // A variable that is not found may be a macro's: every region carries it.
        let found = self.find_variable(&name);
        let (at, late, fixed) = found.map_or((0, false, false), |at| (at, self.vars[at].late, self.vars[at].fixed));
        for r in self.regions.iter_mut().filter(|r| r.outer_variables > at) {
            if late {
                if r.kind == RegionKind::For {
                    let message =
                        format!("`{name}` has no value before this loop\n  help: give it one where it is declared");
                    self.errors.push(syn::Error::new(i.span(), message));
                }
            } else if fixed {
                // rustc says so by itself (E0384).
                r.unmut.insert(name.clone());
            } else {
                r.carried.entry(name.clone()).or_insert_with(|| i.clone());
            }
        }
    }

    /// Counts a method of the standard library that borrows a host variable mutably as an assignment.
    pub(super) fn record_mutating_call(&mut self, m: &syn::ExprMethodCall) {
        const MUTATING_METHODS: [&str; 31] = [
            "push",
            "push_str",
            "push_back",
            "push_front",
            "pop",
            "pop_back",
            "pop_front",
            "insert",
            "remove",
            "swap_remove",
            "extend",
            "extend_from_slice",
            "append",
            "clear",
            "truncate",
            "resize",
            "retain",
            "drain",
            "dedup",
            "sort",
            "sort_by",
            "sort_by_key",
            "sort_unstable",
            "rotate_left",
            "rotate_right",
            "next",
            "next_back",
            "take",
            "replace",
            "get_or_insert_with",
            "entry",
        ];
        let method = m.method.to_string();
        let changing = method.ends_with("_mut") || MUTATING_METHODS.contains(&&*method);
        let variable = root_variable(&m.receiver).and_then(|i| self.find_variable(&i.to_string()));
        if changing && variable.is_some_and(|at| self.vars[at].mutable) {
            self.record_assignment(&m.receiver);
        }
    }

    /// Opens the region of an `if`, `for` or `while`; returns the variable that has the region's key, by which other
    /// calls of the expansion refer to it.
    pub(super) fn open_region(&mut self, kind: RegionKind) -> Ident {
        self.made += 1;
        let key = Ident::new(&format!("key{}", self.made), Span::mixed_site());
        self.regions.push(Region {
            kind,
            outer_variables: self.vars.len(),
            carried: BTreeMap::new(),
            seen: BTreeMap::new(),
            unmut: HashSet::new(),
            key: key.clone(),
        });
        key
    }
    /// Closes the innermost region. Returns a mutable borrow, as tokens, of each outer variable that it assigns, and
    /// tokens of a check that those it only reads stay the same; `span` is that of the statement's keyword.
    pub(super) fn close_region(&mut self, span: Span) -> (Vec<TokenStream>, TokenStream) {
        let r = self.regions.pop().expect("opened before");
        let key = &r.key;
        let here = Span::mixed_site().located_at(span);
        let slot = self.item_path(here, quote!(slot));
        let carried = r.carried.values().map(|i| {
            let borrow = quote_spanned!(i.span()=> &mut);
            quote!(#slot(#key, #borrow #i))
        });
        let held = self.item_path(here, quote!(Held));
        let guard = self.item_path(here, quote!(HostValuesStayTheSameWhereDecidedAtRunTime));
        let frozen = r.seen.iter().filter(|(name, _)| !r.carried.contains_key(*name) && !r.unmut.contains(*name));
        let frozen = frozen.map(|(_, i)| {
            let mut i = i.clone();
            i.set_span(i.span().located_at(span));
            let borrow = quote_spanned!(span=> &);
            quote_spanned!(here=> #held(#key, #borrow #i).steady())
        });
        (carried.collect(), quote_spanned!(here=> #guard((#(#frozen,)*))))
    }
}

/// Returns the variable that a place expression such as `x.0[i]` is, or is a part of; `None` if it begins with anything
/// but a variable.
fn root_variable(e: &Expr) -> Option<&Ident> {
    match e {
        Expr::Path(p) => p.path.get_ident(),
        Expr::Field(f) => root_variable(&f.base),
        Expr::Index(f) => root_variable(&f.expr),
        Expr::Paren(p) => root_variable(&p.expr),
        _ => None,
    }
}
