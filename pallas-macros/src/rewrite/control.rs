//! Rewrites `if`, `for` and `while`: the user's blocks stay in place between calls that record a region.
use super::state::{BodyRewriter, RegionKind};
use super::tokens::{first_span, last_span, spanned_block, spanned_call, strip_parentheses};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Block, Expr, Ident, Stmt, parse_quote_spanned};

/// Methods called on a staged range, `step_by` and `rev`, each with its argument.
type RangeMethods = Vec<(Ident, Option<Expr>)>;

impl BodyRewriter {
    /// Inserts, before the first assignment to a variable that was declared without a value, code that reports an error
    /// while the kernel is traced if the assignment stands in a branch or loop whose condition the device evaluates.
    pub(super) fn insert_late_initialization_checks(&mut self, place: &Expr, assign_expr: &mut Expr) {
        let Expr::Path(p) = place else { return };
        let Some(i) = p.path.get_ident() else { return };
        let Some(at) = self.find_variable(&i.to_string()).filter(|&at| self.vars[at].late) else { return };
        let here = Span::mixed_site().located_at(i.span());
        let path = self.item_path(here, quote!(first_value));
        let inside = self.regions.iter().filter(|r| r.outer_variables > at && r.kind != RegionKind::For);
        let checks: Vec<TokenStream> = inside
            .map(|r| {
                let mut key = r.key.clone();
                key.set_span(here);
                quote_spanned!(here=> #path(#key);)
            })
            .collect();
        if !checks.is_empty() {
            let assignment = &*assign_expr;
            *assign_expr = parse_quote_spanned!(here=> { #(#checks)* #assignment })
        }
    }
    /// Declares the names that a condition with `let` binds; the host decides such a condition.
    pub(super) fn bind_let_names(&mut self, condition: &mut Expr) {
        match condition {
            Expr::Let(l) => {
                self.visit_expr_mut(&mut l.expr);
                let p = l.pat.clone();
                self.bind_pattern(&p, false)
            }
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
                self.bind_let_names(&mut b.left);
                self.bind_let_names(&mut b.right)
            }
            c => self.visit_expr_mut(c),
        }
    }
    /// Rewrites an `if` so that the kernel runs it, with both branches recorded, if its condition is a run-time value;
    /// one that the host surely decides stays an `if`.
    pub(super) fn rewrite_if(&mut self, e: &mut Expr) {
        let Expr::If(mut i) = e.clone() else { return };
        let expect = self.expect.take();
        if has_let(&i.cond) || self.is_host_known(&i.cond) {
            self.run_in_scope(|s| {
                s.bind_let_names(&mut i.cond);
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
        let key = self.open_region(RegionKind::If);
        let mut number = self.rewrite_branch(&mut i.then_branch, &key);
        if let Some((_, x)) = &mut i.else_branch {
            match &mut **x {
                Expr::Block(x) if x.label.is_none() => number = number.or(self.rewrite_branch(&mut x.block, &key)),
                x => {
                    self.expect = expect.clone().filter(|_| matches!(x, Expr::If(_)));
                    self.visit_expr_mut(x);
                }
            }
        }
        let ty = expect.map(|t| quote!(: #t));
        let sp = i.if_token.span;
        let (slots, frozen) = self.close_region(sp);
        let m = Span::mixed_site().located_at(sp);
        let (c, a) = (strip_parentheses(&i.cond), &i.then_branch);
        let b = match &i.else_branch {
            Some((_, x)) => quote!(else #x),
            None => quote!(),
        };
        let new = self.item_path(sp, quote!(condition));
        let mut g = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, quote!(#c));
        g.set_span(sp);
        let root = self.root_path(m);
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
        *e = spanned_block(sp, inner);
    }
    /// Rewrites a branch of an `if`: a host number that it yields becomes an argument of a call of its own, together
    /// with `region_key`, so that errors point at it. Returns the number's span; `None` if there is none.
    fn rewrite_branch(&mut self, block: &mut Block, region_key: &Ident) -> Option<Span> {
        let number = match block.stmts.last() {
            Some(Stmt::Expr(e, None)) => host_number_span(e),
            _ => None,
        };
        self.visit_block_mut(block);
        if let (Some(_), Some(Stmt::Expr(e, None))) = (number, block.stmts.last_mut()) {
            self.wrap_yielded(e, region_key);
        }
        number
    }
    /// Wraps a value that a branch yields, or each entry of a tuple of values, in a call at the value's place in the
    /// source; `region_key`, the variable of the region's key, is the call's first argument.
    fn wrap_yielded(&self, e: &mut Expr, region_key: &Ident) {
        if let Expr::Tuple(t) = e {
            return t.elems.iter_mut().for_each(|e| self.wrap_yielded(e, region_key));
        }
        let (here, value) = (first_span(e), &*e);
        let gives = self.item_path(here, quote!(gives));
        let key = Ident::new(&region_key.to_string(), Span::mixed_site().located_at(here));
        *e = Expr::Verbatim(spanned_call(last_span(e), gives, quote!(#key, #value)));
    }
    /// Rewrites a `for` over a range so that it becomes a loop of the kernel; any other, or one with `#[unroll]`, stays
    /// a loop of the host.
    pub(super) fn rewrite_for(&mut self, e: &mut Expr) {
        let Expr::ForLoop(mut f) = e.clone() else { return };
        let unroll = f.attrs.iter().any(|a| a.path().is_ident("unroll"));
        f.attrs.retain(|a| !a.path().is_ident("unroll"));
        let staged = if unroll { None } else { match_staged_range(&mut f.expr) };
        let Some((bounds, chain)) = staged else {
            self.visit_expr_mut(&mut f.expr);
            self.enter_loop(f.label.as_ref(), None);
            let p = (*f.pat).clone();
            self.run_in_scope(|s| {
                s.bind_pattern(&p, false);
                s.visit_block_mut(&mut f.body)
            });
            self.exit_host_loop(&mut f.label);
            *e = Expr::ForLoop(f);
            return;
        };
        let (Some(mut a), Some(mut b)) = (bounds.start, bounds.end) else { return };
        self.visit_expr_mut(&mut a);
        self.visit_expr_mut(&mut b);
        let sp = f.for_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open_region(RegionKind::For);
        self.enter_loop(f.label.as_ref(), Some(RegionKind::For));
        let p = (*f.pat).clone();
        self.run_in_scope(|s| {
            s.bind_pattern(&p, false);
            s.visit_block_mut(&mut f.body)
        });
        self.exit_frame();
        let (slots, frozen) = self.close_region(sp);
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
        let rf = self.item_path(dots, if inclusive { quote!(range_inclusive) } else { quote!(range) });
        let new = self.item_path(sp, quote!(For::new));
        let (pat, body) = (&f.pat, &f.body);
        let (a, b) = (strip_parentheses(&a), strip_parentheses(&b));
        let rg = spanned_call(dots, rf, quote!(#a, #b));
        let new = spanned_call(sp, new, quote!(#rg #(#chain)*));
        let root = self.root_path(m);
        let inner = quote_spanned!(m=>
            #[allow(unused_imports, reason = "what a region reads may all be steady")] use #root::Otherwise as _;
            let mut region = #new;
            #[allow(unused_variables, reason = "a region may assign nothing")] let #key = region.key();
            let frozen = #frozen;
            while let Some(#pat) = region.next(&mut [#(#slots),*]) #body
        );
        *e = spanned_block(sp, inner);
    }
    /// Rewrites a `while` so that it becomes a loop of the kernel if its condition is a run-time value; one that the
    /// host surely decides stays a `while`.
    pub(super) fn rewrite_while(&mut self, e: &mut Expr) {
        let Expr::While(mut f) = e.clone() else { return };
        if has_let(&f.cond) || self.is_host_known(&f.cond) {
            self.enter_loop(f.label.as_ref(), None);
            self.run_in_scope(|s| {
                s.bind_let_names(&mut f.cond);
                s.visit_block_mut(&mut f.body)
            });
            self.exit_host_loop(&mut f.label);
            *e = Expr::While(f);
            return;
        }
        let sp = f.while_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open_region(RegionKind::While);
        self.enter_loop(f.label.as_ref(), Some(RegionKind::While));
        self.visit_expr_mut(&mut f.cond);
        self.visit_block_mut(&mut f.body);
        let label = self.exit_frame().map(|(label, _)| quote!(#label:));
        let (slots, frozen) = self.close_region(sp);
        let new = self.item_path(sp, quote!(While::new));
        let new = quote_spanned!(sp=> #new());
        let (c, body) = (strip_parentheses(&f.cond), &f.body);
        let test = Ident::new("condition", sp);
        let test = spanned_call(sp, quote!(#test), quote!(#c));
        let root = self.root_path(m);
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
        *e = spanned_block(sp, inner);
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

/// Returns the span of the host number that an expression is, or that a tuple contains; `None` if there is none.
fn host_number_span(e: &Expr) -> Option<Span> {
    match e {
        Expr::Lit(_) | Expr::Cast(_) => Some(first_span(e)),
        Expr::Path(p) => (p.path.segments.len() > 1).then(|| first_span(e)),
        Expr::Unary(u) => host_number_span(&u.expr).map(|_| first_span(e)),
        Expr::Paren(p) => host_number_span(&p.expr),
        Expr::Tuple(t) => t.elems.iter().find_map(host_number_span),
        _ => None,
    }
}

/// Returns the range `a..b` or `a..=b` and the methods called on it; `None` if a `for` over the expression cannot be
/// staged.
fn match_staged_range(e: &mut Expr) -> Option<(syn::ExprRange, RangeMethods)> {
    match e {
        Expr::Range(r) if r.start.is_some() && r.end.is_some() => Some((r.clone(), vec![])),
        Expr::Paren(p) => match_staged_range(&mut p.expr),
        Expr::Group(p) => match_staged_range(&mut p.expr),
        Expr::MethodCall(c)
            if (c.method == "rev" && c.args.is_empty()) || (c.method == "step_by" && c.args.len() == 1) =>
        {
            let (bounds, mut chain) = match_staged_range(&mut c.receiver)?;
            chain.push((c.method.clone(), c.args.first().cloned()));
            Some((bounds, chain))
        }
        _ => None,
    }
}
