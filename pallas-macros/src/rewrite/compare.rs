//! Comparisons and logic: `a < b` becomes `Cmp(&a).lt(&b)`, `a && b` keeps its short circuit.
use super::Rewrite;
use super::tokens::{bare, braced, call, first};
use proc_macro2::Span;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Expr, Ident, UnOp};

impl Rewrite {
    pub(super) fn binary(&mut self, mut b: syn::ExprBinary, e: &mut Expr) {
        let compound = matches!(
            b.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::RemAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        );
        if compound {
            self.visit_expr_mut(&mut b.right);
            self.visit_expr_mut(&mut b.left);
            self.assign(&b.left);
            *e = Expr::Binary(b);
            return;
        }
        let host = self.surely_host(&Expr::Binary(b.clone()));
        self.visit_expr_mut(&mut b.left);
        self.visit_expr_mut(&mut b.right);
        if host {
            *e = Expr::Binary(b);
            return;
        }
        let (l, r) = (bare(&b.left), bare(&b.right));
        let sp = b.op.span();
        let m = Span::mixed_site();
        let name = match b.op {
            BinOp::Lt(_) => "lt",
            BinOp::Le(_) => "le",
            BinOp::Gt(_) => "gt",
            BinOp::Ge(_) => "ge",
            BinOp::Eq(_) => "eq",
            BinOp::Ne(_) => "ne",
            BinOp::And(_) | BinOp::Or(_) => {
                let (lf, rf) = if matches!(b.op, BinOp::And(_)) { ("left_and", "and") } else { ("left_or", "or") };
                let (lf, rf) = (Ident::new(lf, sp), Ident::new(rf, sp));
                let ms = m.located_at(sp);
                let root = self.at(ms);
                let path = self.path(sp, quote!(Logic::#rf));
                let (lv, rv) = (Ident::new("__left", first(l)), Ident::new("__right", first(r)));
                let call = call(sp, path, quote!(#lv, #rv));
                *e = braced(
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
        let (l, r, name) = if lit(l) && !lit(r) {
            (
                r,
                l,
                match name {
                    "lt" => "gt",
                    "le" => "ge",
                    "gt" => "lt",
                    "ge" => "le",
                    x => x,
                },
            )
        } else {
            (l, r, name)
        };
        let f = Ident::new(name, sp);
        let ml = first(l);
        let mr = first(r);
        let root = self.at(sp);
        let cmp = self.path(ml, quote!(Cmp));
        let lhs = quote_spanned!(ml=> #cmp(&(#l)));
        let rhs = quote_spanned!(mr=> &(#r));
        let mut args = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, rhs);
        args.set_span(sp);
        *e = braced(
            sp,
            quote_spanned!(sp=> #[allow(unused_imports, reason = "staged values compare without")] use #root::HostCmp as _; #lhs.#f #args),
        );
    }
}
