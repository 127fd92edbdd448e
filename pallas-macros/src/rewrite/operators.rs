//! Rewrites operators: `a < b` becomes `Cmp(&a).lt(&b)`, `a && b` keeps its short circuit, a size on the left is
//! borrowed.
use super::state::{BodyRewriter, RegionKind};
use super::tokens::{first_span, spanned_block, spanned_call, strip_parentheses};
use crate::ast::is_assigning;
use proc_macro2::Span;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Expr, Ident, Stmt, UnOp, parse_quote_spanned};

impl BodyRewriter {
    /// Replaces `e` by the operation `b`, rewritten: comparisons, `&&` and `||` become calls that take run-time values
    /// too, unless the host knows both sides; other operators stay.
    pub(super) fn rewrite_binary(&mut self, mut b: syn::ExprBinary, e: &mut Expr) {
        if is_assigning(&b.op) {
            self.visit_expr_mut(&mut b.right);
            self.visit_expr_mut(&mut b.left);
            self.record_assignment(&b.left);
            *e = Expr::Binary(b);
            return;
        }
        let host = self.is_host_known(&Expr::Binary(b.clone()));
        if !host && matches!(b.op, BinOp::And(_) | BinOp::Or(_)) && !is_effect_free(&b.right) {
            return self.rewrite_short_circuit(b, e);
        }
        let borrowed = !is_comparison(&b.op) && self.is_size_expression(&b.left) && !self.is_size_expression(&b.right);
        self.visit_expr_mut(&mut b.left);
        self.visit_expr_mut(&mut b.right);
        if borrowed && !matches!(strip_parentheses(&b.right), Expr::Lit(_)) {
            // `&usize - Scalar<i32>` exists, and `&usize - usize`; `usize - Scalar<i32>` does not.
            let (at, size) = (Span::mixed_site().located_at(first_span(&b.left)), &b.left);
            b.left = parse_quote_spanned!(at=> &(#size));
        }
        if host {
            *e = Expr::Binary(b);
            return;
        }
        let (l, r) = (strip_parentheses(&b.left), strip_parentheses(&b.right));
        let sp = b.op.span();
        let m = Span::mixed_site();
        // Method of the comparison, and of the comparison with its sides swapped.
        let names = match b.op {
            BinOp::Lt(_) => ["lt", "gt"],
            BinOp::Le(_) => ["le", "ge"],
            BinOp::Gt(_) => ["gt", "lt"],
            BinOp::Ge(_) => ["ge", "le"],
            BinOp::Eq(_) => ["eq"; 2],
            BinOp::Ne(_) => ["ne"; 2],
            BinOp::And(_) | BinOp::Or(_) => {
                let (lf, rf) = if matches!(b.op, BinOp::And(_)) { ("left_and", "and") } else { ("left_or", "or") };
                let (lf, rf) = (Ident::new(lf, sp), Ident::new(rf, sp));
                let ms = m.located_at(sp);
                let root = self.root_path(ms);
                let path = self.item_path(sp, quote!(Logic::#rf));
                let (lv, rv) = (Ident::new("__left", first_span(l)), Ident::new("__right", first_span(r)));
                let call = spanned_call(sp, path, quote!(#lv, #rv));
                *e = spanned_block(
                    sp,
                    quote_spanned!(ms=> let #lv = #l; let #rv = if #root::Left::#lf(&#lv) { Some(#r) } else { None }; #call),
                );
                return;
            }
            _ => {
                *e = Expr::Binary(b);
                return;
            }
        };
        // literal on the left: turn the comparison round, so that the typed side leads inference
        let lit = |e: &Expr| {
            matches!(e, Expr::Lit(_))
                || matches!(e, Expr::Unary(u) if matches!((&u.op, &*u.expr), (UnOp::Neg(_), Expr::Lit(_))))
        };
        let is_turned = lit(l) && !lit(r);
        let (l, r) = if is_turned { (r, l) } else { (l, r) };
        let f = Ident::new(names[usize::from(is_turned)], sp);
        let (ml, mr) = (first_span(l), first_span(r));
        let root = self.root_path(sp);
        let cmp = self.item_path(ml, quote!(Cmp));
        let lhs = quote_spanned!(ml=> #cmp(&(#l)));
        let rhs = quote_spanned!(mr=> &(#r));
        let compared = spanned_call(sp, quote_spanned!(sp=> #lhs.#f), rhs);
        *e = spanned_block(
            sp,
            quote_spanned!(sp=> #[allow(unused_imports, reason = "staged values compare without")] use #root::HostCmp as _; #compared),
        );
    }
    /// Rewrites `&&` or `||` whose right side may have effects: only the right side is inside of the region.
    fn rewrite_short_circuit(&mut self, mut b: syn::ExprBinary, e: &mut Expr) {
        let (sp, and) = (b.op.span(), matches!(b.op, BinOp::And(_)));
        self.visit_expr_mut(&mut b.left);
        let key = self.open_region(RegionKind::If);
        self.visit_expr_mut(&mut b.right);
        let (slots, frozen) = self.close_region(sp);
        let (l, r) = (strip_parentheses(&b.left), strip_braces(&b.right));
        let m = Span::mixed_site().located_at(sp);
        let root = self.root_path(m);
        let (lv, rv) = (Ident::new("__left", first_span(l)), Ident::new("__right", first_span(r)));
        let new = spanned_call(sp, self.item_path(sp, quote!(short_circuit)), quote!(&#lv, #and));
        let right = if and { quote!(Some(#r)) } else { quote!(None) };
        let other = if and { quote!(None) } else { quote!(Some(#r)) };
        let joined = Ident::new(if and { "and" } else { "or" }, sp);
        let joined = spanned_call(sp, self.item_path(sp, quote!(#joined)), quote!(#key, #lv, #rv));
        let inner = quote_spanned!(m=>
            #[allow(unused_imports, reason = "what a region reads may all be steady")] use #root::Otherwise as _;
            let #lv = #l;
            let mut region = #new;
            let #key = region.key();
            let frozen = match region.gate() { Some(p) => { #root::pass(p); region.begin(&mut [#(#slots),*]); Some(#frozen) } None => None };
            let value = loop {
                let #rv = if region.side() { #right } else { #other };
                let value = #joined;
                match region.leave(value) { ::core::ops::ControlFlow::Break(v) => break v, ::core::ops::ControlFlow::Continue(p) => { #root::pass(p); region.swap(&mut [#(#slots),*]); } }
            };
            let value = match region.gate() { Some(p) => { #root::pass(p); region.finish(value, &mut [#(#slots),*]) } None => value };
            value
        );
        *e = spanned_block(sp, inner);
    }
}

/// Strips braces or parentheses that rustc would call unnecessary around an argument.
fn strip_braces(e: &Expr) -> &Expr {
    match strip_parentheses(e) {
        Expr::Block(b) if b.label.is_none() => match &b.block.stmts[..] {
            [Stmt::Expr(one, None)] => one,
            _ => e,
        },
        e => e,
    }
}

/// Returns true for a comparison operator.
fn is_comparison(op: &BinOp) -> bool {
    matches!(op, BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) | BinOp::Eq(_) | BinOp::Ne(_))
}

/// Returns true if evaluating an expression of run-time values can neither fault nor have effects, so that it may be
/// computed although its result is not needed.
fn is_effect_free(e: &Expr) -> bool {
    match e {
        Expr::Lit(_) | Expr::Path(_) => true,
        Expr::Paren(p) => is_effect_free(&p.expr),
        Expr::Group(p) => is_effect_free(&p.expr),
        Expr::Field(f) => is_effect_free(&f.base),
        Expr::Cast(c) => is_effect_free(&c.expr),
        Expr::Unary(u) => !matches!(u.op, UnOp::Deref(_)) && is_effect_free(&u.expr),
        Expr::Binary(b) => is_effect_free(&b.left) && is_effect_free(&b.right) && !is_assigning(&b.op),
        Expr::Block(b) => b.block.stmts.iter().all(|s| match s {
            Stmt::Local(l) => l.init.as_ref().is_some_and(|i| i.diverge.is_none() && is_effect_free(&i.expr)),
            Stmt::Expr(e, _) => is_effect_free(e),
            Stmt::Item(_) | Stmt::Macro(_) => false,
        }),
        Expr::Call(c) => {
            let asks = |p: &syn::ExprPath| p.path.is_ident("program_id") || p.path.is_ident("num_programs");
            matches!(&*c.func, Expr::Path(p) if asks(p)) && c.args.iter().all(is_effect_free)
        }
        _ => false,
    }
}
