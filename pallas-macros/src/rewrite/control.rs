//! `if`, `for`, `while`: the user's blocks stay in place between the steps of a region object.
use super::{Frame, Kind, Rewrite, braced, call, idents};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{BinOp, Expr, Ident, parse_quote_spanned};

impl Rewrite {
    /// an assignment to a variable declared without a value is allowed only where the region is host-decided
    pub(super) fn uninit(&mut self, left: &Expr, e: &mut Expr) {
        let Expr::Path(p) = left else { return };
        let Some(i) = p.path.get_ident() else { return };
        let Some(at) = self.find(&i.to_string()) else { return };
        if !self.vars[at].uninit || self.vars[at].by_macro {
            return;
        }
        let m = Span::mixed_site().located_at(i.span());
        let c: Vec<TokenStream> = self
            .regions
            .iter()
            .filter(|r| r.start > at && r.kind != Kind::For)
            .map(|r| {
                let mut k = r.key.clone();
                k.set_span(m);
                {
                    let path = self.path(m, quote!(leaves_region));
                    quote_spanned!(m=> #path(#k);)
                }
            })
            .collect();
        if !c.is_empty() {
            let x = e.clone();
            *e = parse_quote_spanned!(m=> { #(#c)* #x })
        }
    }
    pub(super) fn let_binds(&mut self, c: &mut Expr) {
        // conditions with `let`: host; binds names for the then-block
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
    pub(super) fn iff(&mut self, e: &mut Expr) {
        let Expr::If(mut i) = e.clone() else { return };
        let ty = self.expect.take().map(|t| quote!(: #t));
        let lets = idents(i.cond.to_token_stream()).contains("let");
        if lets || self.surely_host(&i.cond) {
            self.scoped(|s| {
                s.let_binds(&mut i.cond);
                s.visit_block_mut(&mut i.then_branch)
            });
            if let Some((_, x)) = &mut i.else_branch {
                self.visit_expr_mut(x)
            }
            *e = Expr::If(i);
            return;
        }
        self.visit_expr_mut(&mut i.cond);
        let key = self.open(Kind::If);
        self.visit_block_mut(&mut i.then_branch);
        if let Some((_, x)) = &mut i.else_branch {
            self.visit_expr_mut(x)
        }
        let sp = i.if_token.span;
        let (slots, frozen) = self.close(sp);
        let m = Span::mixed_site().located_at(sp);
        let (c, a) = (&i.cond, &i.then_branch);
        let attrs = &i.attrs;
        let b = match &i.else_branch {
            Some((_, x)) => quote!(else #x),
            None => quote!(),
        };
        let new = self.path(sp, quote!(condition));
        let mut g = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, quote!(#c));
        g.set_span(sp);
        let root = self.at(m);
        let inner = quote_spanned!(m=>
            let mut region = #new #g;
            #[allow(unused_variables)] let #key = region.key();
            let frozen = match region.gate() { Some(p) => { #root::pass(p); region.begin(&mut [#(#slots),*]); Some((#(#frozen,)*)) } None => None };
            let value #ty = loop {
                let value #ty = if region.side() #a #b;
                match region.leave(value) { ::core::ops::ControlFlow::Break(v) => break v, ::core::ops::ControlFlow::Continue(p) => { #root::pass(p); region.swap(&mut [#(#slots),*]); } }
            };
            let value = match region.gate() { Some(p) => { #root::pass(p); region.finish(value, &mut [#(#slots),*]) } None => value };
            #root::thaw(frozen);
            value
        );
        let _ = attrs;
        *e = braced(sp, inner);
    }
    pub(super) fn forr(&mut self, e: &mut Expr) {
        let Expr::ForLoop(mut f) = e.clone() else { return };
        let unroll = f.attrs.iter().any(|a| a.path().is_ident("unroll"));
        f.attrs.retain(|a| !a.path().is_ident("unroll"));
        let staged = if unroll { None } else { Self::range(&mut f.expr) };
        let label = f.label.as_ref().map(|l| l.name.clone());
        let Some((range, chain)) = staged else {
            self.visit_expr_mut(&mut f.expr);
            let r = self.regions.len();
            self.frames.push(Frame::Loop { label, made: false, target: None, regions: r, block: false });
            let p = (*f.pat).clone();
            self.scoped(|s| {
                s.bind(&p, false);
                s.visit_block_mut(&mut f.body)
            });
            if let Some(Frame::Loop { label: Some(n), made: true, .. }) = self.frames.pop() {
                f.label = Some(parse_quote_spanned!(n.span()=> #n:))
            }
            *e = Expr::ForLoop(f);
            return;
        };
        let Expr::Range(rg) = range else { return };
        let (Some(mut a), Some(mut b)) = (rg.start, rg.end) else { return };
        let (a, b) = (&mut *a, &mut *b);
        self.visit_expr_mut(a);
        self.visit_expr_mut(b);
        let sp = f.for_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open(Kind::For);
        let r = self.regions.len() - 1;
        self.frames.push(Frame::Loop { label, made: false, target: Some(Kind::For), regions: r, block: false });
        let p = (*f.pat).clone();
        self.scoped(|s| {
            s.bind(&p, false);
            s.visit_block_mut(&mut f.body)
        });
        self.frames.pop();
        let (slots, frozen) = self.close(sp);
        let dots = rg.limits.span();
        let chain: Vec<TokenStream> = chain
            .into_iter()
            .map(|(n, mut x)| {
                if let Some(x) = &mut x {
                    self.visit_expr_mut(x)
                }
                quote!(.#n(#x))
            })
            .collect();
        let rf = self.path(dots, quote!(range));
        let new = self.path(sp, quote!(For::new));
        let (pat, body) = (&f.pat, &f.body);
        let rg = call(dots, rf, quote!(#a, #b));
        let new = call(sp, new, quote!(#rg #(#chain)*));
        let root = self.at(m);
        let inner = quote_spanned!(m=>
            let mut region = #new;
            #[allow(unused_variables)] let #key = region.key();
            let frozen = (#(#frozen,)*);
            while let Some(#pat) = region.next(&mut [#(#slots),*]) #body
            #root::thaw(frozen);
        );
        *e = braced(sp, inner);
    }
    pub(super) fn whilee(&mut self, e: &mut Expr) {
        let Expr::While(mut f) = e.clone() else { return };
        let label = f.label.as_ref().map(|l| l.name.clone());
        if idents(f.cond.to_token_stream()).contains("let") || self.surely_host(&f.cond) {
            let r = self.regions.len();
            self.frames.push(Frame::Loop { label, made: false, target: None, regions: r, block: false });
            self.scoped(|s| {
                s.let_binds(&mut f.cond);
                s.visit_block_mut(&mut f.body)
            });
            if let Some(Frame::Loop { label: Some(n), made: true, .. }) = self.frames.pop() {
                f.label = Some(parse_quote_spanned!(n.span()=> #n:))
            }
            *e = Expr::While(f);
            return;
        }
        let sp = f.while_token.span;
        let m = Span::mixed_site().located_at(sp);
        let key = self.open(Kind::While);
        let r = self.regions.len() - 1;
        self.frames.push(Frame::Loop { label, made: false, target: Some(Kind::While), regions: r, block: false });
        self.visit_expr_mut(&mut f.cond);
        self.visit_block_mut(&mut f.body);
        let lab = match self.frames.pop() {
            Some(Frame::Loop { label: Some(n), .. }) => Some(quote!(#n:)),
            _ => None,
        };
        let (slots, frozen) = self.close(sp);
        let new = self.path(sp, quote!(While::new));
        let new = quote_spanned!(sp=> #new());
        let (c, body) = (&f.cond, &f.body);
        let test = Ident::new("condition", m);
        let root = self.at(m);
        let inner = quote_spanned!(m=>
            let mut region = #new;
            #[allow(unused_variables)] let #key = region.key();
            let frozen = match region.gate() { Some(p) => { #root::pass(p); Some((#(#frozen,)*)) } None => None };
            #lab loop {
                match region.gate() { Some(p) => { #root::pass(p); if !region.head(&mut [#(#slots),*]) { break } } None => {} }
                if !region.#test(#c) { break }
                match region.gate() { Some(p) => { #root::pass(p); region.body(&mut [#(#slots),*]); } None => {} }
                #body
            }
            #root::thaw(frozen);
        );
        *e = braced(sp, inner);
    }
}
