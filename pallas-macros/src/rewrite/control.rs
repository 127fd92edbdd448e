//! Rewrites `if`, `for` and `while`: the user's blocks stay in place between calls that record a region.
use super::state::{Kind, Rewrite};
use super::tokens::{bare, braced, call, first, last};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Block, Expr, Ident, Stmt, parse_quote_spanned};

/// Methods called on a staged range, `step_by` and `rev`, each with its argument.
type Chain = Vec<(Ident, Option<Expr>)>;

impl Rewrite {
    /// Checks an assignment to a variable declared without a value: the host must decide every region around it.
    pub(super) fn late_value(&mut self, left: &Expr, e: &mut Expr) {
        let Expr::Path(p) = left else { return };
        let Some(i) = p.path.get_ident() else { return };
        let Some(at) = self.find(&i.to_string()).filter(|&at| self.vars[at].late) else { return };
        let here = Span::mixed_site().located_at(i.span());
        let path = self.path(here, quote!(first_value));
        let inside = self.regions.iter().filter(|r| r.start > at && r.kind != Kind::For);
        let checks: Vec<TokenStream> = inside
            .map(|r| {
                let mut key = r.key.clone();
                key.set_span(here);
                quote_spanned!(here=> #path(#key);)
            })
            .collect();
        if !checks.is_empty() {
            let assignment = &*e;
            *e = parse_quote_spanned!(here=> { #(#checks)* #assignment })
        }
    }
    /// Declares the names that a condition with `let` binds; the host decides such a condition.
    pub(super) fn let_binds(&mut self, c: &mut Expr) {
        match c {
            Expr::Let(l) => {
                self.visit_expr_mut(&mut l.expr);
                let p = l.pat.clone();
                self.bind(&p, false)
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
                self.let_binds(&mut b.left);
                self.let_binds(&mut b.right)
            }
            c => self.visit_expr_mut(c),
        }
    }
    /// Rewrites an `if`.
    pub(super) fn if_(&mut self, e: &mut Expr) {
        let Expr::If(mut i) = e.clone() else { return };
        let expect = self.expect.take();
        if has_let(&i.cond) || self.surely_host(&i.cond) {
            self.scoped(|s| {
                s.let_binds(&mut i.cond);
                s.visit_block_mut(&mut i.then_branch)
            });
            if let Some((_, x)) = &mut i.else_branch {
                self.expect = expect.filter(|_| matches!(**x, Expr::If(_)));
                self.visit_expr_mut(x)
            }
            *e = Expr::If(i);
            return;
        }
        self.visit_expr_mut(&mut i.cond);
        let key = self.open(Kind::If);
        let mut number = self.side(&mut i.then_branch, &key);
        if let Some((_, x)) = &mut i.else_branch {
            match &mut **x {
                Expr::Block(x) if x.label.is_none() => number = number.or(self.side(&mut x.block, &key)),
                x => {
                    self.expect = expect.clone().filter(|_| matches!(x, Expr::If(_)));
                    self.visit_expr_mut(x);
                }
            }
        }
        let ty = expect.map(|t| quote!(: #t));
        let sp = i.if_token.span;
        let (slots, frozen) = self.close(sp);
        let m = Span::mixed_site().located_at(sp);
        let (c, a) = (bare(&i.cond), &i.then_branch);
        let b = match &i.else_branch {
            Some((_, x)) => quote!(else #x),
            None => quote!(),
        };
        let new = self.path(sp, quote!(condition));
        let mut g = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, quote!(#c));
        g.set_span(sp);
        let root = self.at(m);
        // Where a side of an `if` is a host number, these types are wrong for the same reason; rustc reports it once,
        // at one place.
        let at = Span::mixed_site().located_at(number.unwrap_or(sp));
        let [leave, finish, value] = ["leave", "finish", "value"].map(|name| Ident::new(name, at));
        let inner = quote_spanned!(m=>
            #[allow(unused_imports, reason = "what a region reads may all be steady")] use #root::Otherwise as _;
            let mut region = #new #g;
            #[allow(unused_variables, reason = "a region may assign nothing")] let #key = region.key();
            let frozen = match region.gate() { Some(p) => { #root::pass(p); region.begin(&mut [#(#slots),*]); Some(#frozen) } None => None };
            let value #ty = loop {
                let value #ty = if region.side() #a #b;
                match region.#leave(#value) { ::core::ops::ControlFlow::Break(v) => break v, ::core::ops::ControlFlow::Continue(p) => { #root::pass(p); region.swap(&mut [#(#slots),*]); } }
            };
            let value = match region.gate() { Some(p) => { #root::pass(p); region.#finish(#value, &mut [#(#slots),*]) } None => value };
            value
        );
        *e = braced(sp, inner);
    }
    /// Rewrites a branch of an `if`: a host number that it yields becomes an argument of its own call, so that errors
    /// point at it. Returns its span.
    fn side(&mut self, block: &mut Block, key: &Ident) -> Option<Span> {
        let number = match block.stmts.last() {
            Some(Stmt::Expr(e, None)) => number_in(e),
            _ => None,
        };
        self.visit_block_mut(block);
        if let (Some(_), Some(Stmt::Expr(e, None))) = (number, block.stmts.last_mut()) {
            self.given(e, key);
        }
        number
    }
    /// Wraps a yielded value, or each part of a tuple, in a call that carries its span.
    fn given(&self, e: &mut Expr, key: &Ident) {
        if let Expr::Tuple(t) = e {
            return t.elems.iter_mut().for_each(|e| self.given(e, key));
        }
        let (here, value) = (first(e), &*e);
        let gives = self.path(here, quote!(gives));
        let key = Ident::new(&key.to_string(), Span::mixed_site().located_at(here));
        *e = Expr::Verbatim(call(last(e), gives, quote!(#key, #value)));
    }
    /// Rewrites a `for`.
    pub(super) fn for_(&mut self, e: &mut Expr) {
        let Expr::ForLoop(mut f) = e.clone() else { return };
        let unroll = f.attrs.iter().any(|a| a.path().is_ident("unroll"));
        f.attrs.retain(|a| !a.path().is_ident("unroll"));
        let staged = if unroll { None } else { range(&mut f.expr) };
        let Some((bounds, chain)) = staged else {
            self.visit_expr_mut(&mut f.expr);
            self.enter(f.label.as_ref(), None);
            let p = (*f.pat).clone();
            self.scoped(|s| {
                s.bind(&p, false);
                s.visit_block_mut(&mut f.body)
            });
            self.exit_host(&mut f.label);
            *e = Expr::ForLoop(f);
            return;
        };
        let (Some(mut a), Some(mut b)) = (bounds.start, bounds.end) else { return };
        self.visit_expr_mut(&mut a);
        self.visit_expr_mut(&mut b);
        let sp = f.for_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open(Kind::For);
        self.enter(f.label.as_ref(), Some(Kind::For));
        let p = (*f.pat).clone();
        self.scoped(|s| {
            s.bind(&p, false);
            s.visit_block_mut(&mut f.body)
        });
        self.exit();
        let (slots, frozen) = self.close(sp);
        let dots = bounds.limits.span();
        let chain: Vec<TokenStream> = chain
            .into_iter()
            .map(|(n, mut x)| {
                if let Some(x) = &mut x {
                    self.visit_expr_mut(x)
                }
                quote!(.#n(#x))
            })
            .collect();
        let inclusive = matches!(bounds.limits, syn::RangeLimits::Closed(_));
        let rf = self.path(dots, if inclusive { quote!(range_inclusive) } else { quote!(range) });
        let new = self.path(sp, quote!(For::new));
        let (pat, body) = (&f.pat, &f.body);
        let (a, b) = (bare(&a), bare(&b));
        let rg = call(dots, rf, quote!(#a, #b));
        let new = call(sp, new, quote!(#rg #(#chain)*));
        let root = self.at(m);
        let inner = quote_spanned!(m=>
            #[allow(unused_imports, reason = "what a region reads may all be steady")] use #root::Otherwise as _;
            let mut region = #new;
            #[allow(unused_variables, reason = "a region may assign nothing")] let #key = region.key();
            let frozen = #frozen;
            while let Some(#pat) = region.next(&mut [#(#slots),*]) #body
        );
        *e = braced(sp, inner);
    }
    /// Rewrites a `while`.
    pub(super) fn while_(&mut self, e: &mut Expr) {
        let Expr::While(mut f) = e.clone() else { return };
        if has_let(&f.cond) || self.surely_host(&f.cond) {
            self.enter(f.label.as_ref(), None);
            self.scoped(|s| {
                s.let_binds(&mut f.cond);
                s.visit_block_mut(&mut f.body)
            });
            self.exit_host(&mut f.label);
            *e = Expr::While(f);
            return;
        }
        let sp = f.while_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open(Kind::While);
        self.enter(f.label.as_ref(), Some(Kind::While));
        self.visit_expr_mut(&mut f.cond);
        self.visit_block_mut(&mut f.body);
        let label = self.exit().map(|(label, _)| quote!(#label:));
        let (slots, frozen) = self.close(sp);
        let new = self.path(sp, quote!(While::new));
        let new = quote_spanned!(sp=> #new());
        let (c, body) = (bare(&f.cond), &f.body);
        let test = Ident::new("condition", sp);
        let test = call(sp, quote!(#test), quote!(#c));
        let root = self.at(m);
        let inner = quote_spanned!(m=>
            #[allow(unused_imports, reason = "what a region reads may all be steady")] use #root::Otherwise as _;
            let mut region = #new;
            #[allow(unused_variables, reason = "a region may assign nothing")] let #key = region.key();
            let frozen = match region.gate() { Some(p) => { #root::pass(p); Some(#frozen) } None => None };
            #label loop {
                match region.gate() { Some(p) => { #root::pass(p); if !region.head(&mut [#(#slots),*]) { break } } None => {} }
                if !region.#test { break }
                match region.gate() { Some(p) => { #root::pass(p); region.body(&mut [#(#slots),*]); } None => {} }
                #body
            }
        );
        *e = braced(sp, inner);
    }
}

/// Returns true if a condition binds names: `let x = y`, alone or in a chain of `&&`.
fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) => matches!(b.op, BinOp::And(_)) && (has_let(&b.left) || has_let(&b.right)),
        Expr::Group(g) => has_let(&g.expr),
        _ => false,
    }
}

/// Span of the host number that an expression is, or that a tuple contains.
fn number_in(e: &Expr) -> Option<Span> {
    match e {
        Expr::Lit(_) | Expr::Cast(_) => Some(first(e)),
        Expr::Path(p) => (p.path.segments.len() > 1).then(|| first(e)),
        Expr::Unary(u) => number_in(&u.expr).map(|_| first(e)),
        Expr::Paren(p) => number_in(&p.expr),
        Expr::Tuple(t) => t.elems.iter().find_map(number_in),
        _ => None,
    }
}

/// The range `a..b` or `a..=b` and the methods called on it, if a `for` over it can be staged.
fn range(e: &mut Expr) -> Option<(syn::ExprRange, Chain)> {
    match e {
        Expr::Range(r) if r.start.is_some() && r.end.is_some() => Some((r.clone(), vec![])),
        Expr::Paren(p) => range(&mut p.expr),
        Expr::Group(p) => range(&mut p.expr),
        Expr::MethodCall(c)
            if (c.method == "rev" && c.args.is_empty()) || (c.method == "step_by" && c.args.len() == 1) =>
        {
            let (bounds, mut chain) = range(&mut c.receiver)?;
            chain.push((c.method.clone(), c.args.first().cloned()));
            Some((bounds, chain))
        }
        _ => None,
    }
}
