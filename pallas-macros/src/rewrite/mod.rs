//! Rewrites staged control flow and comparisons of a kernel body; every other expression stays as the user wrote it.
//!
//! [`control`] the regions, [`compare`] comparisons and logic; this file walks the body and knows its variables.
mod compare;
mod control;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use std::collections::{BTreeMap, HashSet};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Ident, Lifetime, Pat, Stmt, parse_quote_spanned};

pub(crate) fn idents(t: TokenStream) -> HashSet<String> {
    let mut s = HashSet::new();
    walk(t, &mut |i| {
        s.insert(i.to_string());
    });
    s
}
fn walk(t: TokenStream, f: &mut impl FnMut(&Ident)) {
    for t in t {
        match t {
            TokenTree::Ident(i) => f(&i),
            TokenTree::Group(g) => walk(g.stream(), f),
            _ => {}
        }
    }
}

#[derive(PartialEq, Clone, Copy)]
enum Kind {
    If,
    For,
    While,
}
struct Region {
    kind: Kind,
    start: usize,
    carried: BTreeMap<String, Ident>,
    seen: BTreeMap<String, Ident>,
    unmut: HashSet<String>,
    key: Ident,
}
struct Var {
    name: String,
    uninit: bool,
    by_macro: bool,
    fixed: bool,
}
enum Frame {
    Loop { label: Option<Lifetime>, made: bool, target: Option<Kind>, regions: usize, block: bool },
    Fence { regions: usize },
}
/// Methods called on a staged range: `step_by`, `rev`, each with its argument.
type Chain = Vec<(Ident, Option<Expr>)>;

/// The rewriting visitor: which variables there are, and which regions and loops are open.
pub(crate) struct Rewrite {
    /// `::pallas_rt::__private`, or where the user says it is.
    root: TokenStream,
    host: Vec<String>,
    vars: Vec<Var>,
    regions: Vec<Region>,
    frames: Vec<Frame>,
    n: usize,
    pub(crate) errors: Vec<syn::Error>,
    local_macros: Vec<Ident>,
    expect: Option<syn::Type>,
    pub(crate) dims: HashSet<String>,
}
/// a dimension's name in the body: renamed, so that an item of the same name can't turn the binding into a pattern
pub(crate) fn dim_ident(i: &Ident) -> Ident {
    Ident::new(&format!("__dim_{}", i.to_string().trim_start_matches("r#")), i.span())
}
/// The identifier of a name that may be raw: `r#type`
pub(crate) fn named(name: &str) -> Ident {
    match name.strip_prefix("r#") {
        Some(bare) => Ident::new_raw(bare, Span::call_site()),
        None => Ident::new(name, Span::call_site()),
    }
}

impl Rewrite {
    pub(crate) fn new(root: TokenStream, host: Vec<String>) -> Self {
        Rewrite {
            root,
            host,
            vars: vec![],
            regions: vec![],
            frames: vec![],
            n: 0,
            errors: vec![],
            local_macros: vec![],
            expect: None,
            dims: HashSet::new(),
        }
    }
    /// The root path at a span: `Location::caller()` and rustc's carets follow it.
    fn at(&self, span: Span) -> TokenStream {
        respan(self.root.clone(), span)
    }
    /// An item under the root, at a span.
    fn path(&self, span: Span, item: TokenStream) -> TokenStream {
        let (root, item) = (self.at(span), respan(item, span));
        quote_spanned!(span=> #root::#item)
    }
    pub(crate) fn declare(&mut self, i: &Ident, uninit: bool, by_macro: bool) {
        self.vars.push(Var { name: i.to_string(), uninit, by_macro, fixed: false })
    }
    pub(crate) fn block(&mut self, b: &mut Block) {
        self.visit_block_mut(b)
    }
    fn bind(&mut self, p: &Pat, uninit: bool) {
        struct V<'a>(&'a mut Rewrite, bool);
        impl syn::visit::Visit<'_> for V<'_> {
            fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
                self.0.declare(&p.ident, self.1, false);
                if let Some(var) = self.0.vars.last_mut() {
                    var.fixed = p.mutability.is_none();
                }
                syn::visit::visit_pat_ident(self, p)
            }
            fn visit_expr(&mut self, _: &Expr) {}
        }
        syn::visit::Visit::visit_pat(&mut V(self, uninit), p)
    }
    fn find(&self, n: &str) -> Option<usize> {
        self.vars.iter().rposition(|v| v.name == n)
    }
    fn is_dim(&self, n: &str) -> bool {
        self.dims.contains(n) && self.vars.iter().filter(|v| v.name == n).count() == 1
    }
    fn mention(&mut self, i: &Ident) {
        let n = i.to_string();
        if self.is_dim(&n) {
            return;
        }
        let Some(at) = self.find(&n) else { return };
        if self.vars[at].uninit {
            return;
        }
        for r in self.regions.iter_mut().filter(|r| r.start > at) {
            r.seen.entry(n.clone()).or_insert_with(|| i.clone());
        }
    }
    fn assign(&mut self, e: &Expr) {
        match e {
            Expr::Path(p) if let Some(i) = p.path.get_ident() => {
                let n = i.to_string();
                let at = self.find(&n).map_or(0, |x| x);
                let uninit = self.find(&n).is_some_and(|a| self.vars[a].uninit);
                if !uninit && self.find(&n).is_some_and(|a| self.vars[a].fixed) {
                    for r in self.regions.iter_mut().filter(|r| r.start > at) {
                        r.unmut.insert(n.clone());
                    }
                    return;
                } // rustc says E0384 by itself
                for r in self.regions.iter_mut().filter(|r| r.start > at || self.vars.is_empty()) {
                    if uninit {
                        if r.kind == Kind::For {
                            self.errors.push(syn::Error::new(
                                i.span(),
                                format!("`{n}` has no value before this loop; give it one where it is declared"),
                            ))
                        }
                        continue;
                    }
                    r.carried.entry(n.clone()).or_insert_with(|| i.clone());
                }
            }
            Expr::Field(f) => self.assign(&f.base),
            Expr::Index(f) => self.assign(&f.expr),
            Expr::Paren(p) => self.assign(&p.expr),
            Expr::Group(p) => self.assign(&p.expr),
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.assign(e)),
            Expr::Array(t) => t.elems.iter().for_each(|e| self.assign(e)),
            _ => {}
        }
    }
    fn open(&mut self, kind: Kind) -> Ident {
        self.n += 1;
        let key = Ident::new(&format!("key{}", self.n), Span::mixed_site());
        self.regions.push(Region {
            kind,
            start: self.vars.len(),
            carried: BTreeMap::new(),
            seen: BTreeMap::new(),
            unmut: HashSet::new(),
            key: key.clone(),
        });
        key
    }
    /// (slots, frozen) of the region just walked; spans: the keyword that opens it
    fn close(&mut self, sp: Span) -> (Vec<TokenStream>, Vec<TokenStream>) {
        let r = self.regions.pop().expect("opened before");
        let key = &r.key;
        let m = Span::mixed_site().located_at(sp);
        let slots = r
            .carried
            .values()
            .map(|i| {
                let amp = quote_spanned!(i.span()=> &mut);
                let k = Ident::new(&key.to_string(), Span::mixed_site());
                let path = self.path(m, quote!(slot));
                quote!(#path(#k, #amp #i))
            })
            .collect();
        let frozen = r
            .seen
            .iter()
            .filter(|(n, _)| !r.carried.contains_key(*n) && !r.unmut.contains(*n))
            .map(|(_, i)| {
                let user = i.span();
                let mut i = i.clone();
                i.set_span(i.span().located_at(sp));
                let k = Ident::new(&key.to_string(), Span::mixed_site());
                let path = self.path(m, quote!(steady));
                let amp = quote_spanned!(sp=> &);
                let _ = user;
                quote_spanned!(m=> #path(#k, #amp #i))
            })
            .collect();
        (slots, frozen)
    }
    fn scoped<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let n = self.vars.len();
        let r = f(self);
        self.vars.truncate(n);
        r
    }
    /// decided by literals, const generics and `#[fixed]` parameters alone
    fn surely_host(&self, e: &Expr) -> bool {
        match e {
            Expr::Lit(_) => true,
            Expr::Paren(p) => self.surely_host(&p.expr),
            Expr::Unary(u) => self.surely_host(&u.expr),
            Expr::Binary(b) => self.surely_host(&b.left) && self.surely_host(&b.right),
            Expr::Path(p) => p.path.get_ident().is_some_and(|i| {
                self.host.contains(&i.to_string()) && self.vars.iter().filter(|v| i == &v.name).count() < 2
            }),
            Expr::Macro(m) => m.mac.path.is_ident("cfg"),
            _ => false,
        }
    }
    fn leave(
        &mut self,
        label: Option<&Lifetime>,
        what: &str,
        sp: Span,
    ) -> Option<(Option<Lifetime>, Vec<TokenStream>)> {
        let ret = what == "return";
        let mut from = 0;
        let mut found = None;
        for (i, f) in self.frames.iter().enumerate().rev() {
            match f {
                Frame::Fence { regions } => {
                    from = *regions;
                    break;
                }
                Frame::Loop { label: l, regions, block, .. }
                    if !ret && (if let Some(x) = label { l.as_ref() == Some(x) } else { !block }) =>
                {
                    from = *regions;
                    found = Some(i);
                    break;
                }
                _ => {}
            }
        }
        let mut checks = vec![];
        if let Some(Frame::Loop { target: Some(Kind::For), .. }) = found.map(|i| &self.frames[i]) {
            self.errors.push(syn::Error::new(sp, format!("`{what}` can't leave a staged `for`: all iterations are recorded at once; use `while`, or guard the rest of the body with `if`, or write `#[unroll]`")));
            return None;
        }
        for r in &self.regions[from..] {
            match r.kind {
                Kind::For => {
                    self.errors.push(syn::Error::new(
                        sp,
                        format!("`{what}` can't leave a staged `for`: all iterations are recorded at once"),
                    ));
                    return None;
                }
                _ => {
                    let k = &r.key;
                    let mut k2 = k.clone();
                    k2.set_span(Span::mixed_site().located_at(sp));
                    let path = self.path(Span::mixed_site().located_at(sp), quote!(leaves_region));
                    checks.push(quote!(#path(#k2);))
                }
            }
        }
        let mut new = label.cloned();
        if let Some(i) = found
            && label.is_none()
            && self.regions[from..].iter().any(|r| r.kind == Kind::If)
        {
            let n = self.n;
            if let Frame::Loop { label: l, made, .. } = &mut self.frames[i] {
                new = Some(
                    l.get_or_insert_with(|| {
                        *made = true;
                        Lifetime::new(&format!("'kernel{n}"), Span::mixed_site())
                    })
                    .clone(),
                );
                self.n += 1;
            }
        }
        Some((new, checks))
    }
    fn range(e: &mut Expr) -> Option<(Expr, Chain)> {
        match e {
            Expr::Range(r)
                if matches!(r.limits, syn::RangeLimits::HalfOpen(_)) && r.start.is_some() && r.end.is_some() =>
            {
                Some((Expr::Range(r.clone()), vec![]))
            }
            Expr::Paren(p) => Self::range(&mut p.expr),
            Expr::Group(p) => Self::range(&mut p.expr),
            Expr::MethodCall(c)
                if (c.method == "rev" && c.args.is_empty()) || (c.method == "step_by" && c.args.len() == 1) =>
            {
                let (b, mut v) = Self::range(&mut c.receiver)?;
                v.push((c.method.clone(), c.args.first().cloned()));
                Some((b, v))
            }
            _ => None,
        }
    }
}

impl VisitMut for Rewrite {
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_path_arguments_mut(&mut self, _: &mut syn::PathArguments) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut syn::AngleBracketedGenericArguments) {}
    fn visit_item_mut(&mut self, i: &mut syn::Item) {
        if let syn::Item::Macro(m) = i {
            walk(m.mac.tokens.clone(), &mut |i| self.local_macros.push(i.clone()));
            if m.ident.is_some() && m.mac.path.is_ident("macro_rules") {
                self.errors.push(syn::Error::new_spanned(
                    &m.ident,
                    "a `macro_rules!` inside a kernel can change variables unseen; define it outside",
                ))
            }
        }
    }
    fn visit_block_mut(&mut self, b: &mut Block) {
        self.scoped(|s| b.stmts.iter_mut().for_each(|x| s.visit_stmt_mut(x)))
    }
    fn visit_local_mut(&mut self, l: &mut syn::Local) {
        if let Some(i) = &mut l.init {
            if let (Pat::Type(t), Expr::If(_)) = (&l.pat, &*i.expr) {
                self.expect = Some((*t.ty).clone())
            }
            self.visit_expr_mut(&mut i.expr);
            if let Some((_, e)) = &mut i.diverge {
                self.visit_expr_mut(e)
            }
        }
        self.bind(&l.pat, l.init.is_none());
    }
    fn visit_macro_mut(&mut self, m: &mut syn::Macro) {
        const STD: &[&str] = &[
            "assert",
            "assert_eq",
            "assert_ne",
            "debug_assert",
            "vec",
            "println",
            "eprintln",
            "print",
            "format",
            "write",
            "writeln",
            "panic",
            "dbg",
            "matches",
        ];
        let last = m.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        if STD.contains(&&*last)
            && let Ok(mut a) = m.parse_body_with(syn::punctuated::Punctuated::<Expr, syn::Token![,]>::parse_terminated)
            && last != "matches"
        {
            a.iter_mut().for_each(|e| match e {
                Expr::Assign(x) if last != "vec" => self.visit_expr_mut(&mut x.right),
                e => self.visit_expr_mut(e),
            });
            m.tokens = a.to_token_stream();
            return;
        }
        let t = m.tokens.clone();
        walk(t, &mut |i| self.mention(i));
    }
    fn visit_stmt_mut(&mut self, s: &mut Stmt) {
        if let Stmt::Local(l) = s { self.visit_local_mut(l) } else { visit_mut::visit_stmt_mut(self, s) }
    }
    fn visit_arm_mut(&mut self, a: &mut syn::Arm) {
        let p = a.pat.clone();
        self.scoped(|s| {
            s.bind(&p, false);
            if let Some((_, g)) = &mut a.guard {
                s.visit_expr_mut(g)
            }
            s.visit_expr_mut(&mut a.body)
        })
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        match e {
            Expr::Path(p) => {
                if p.qself.is_none()
                    && let Some(i) = p.path.get_ident()
                {
                    let i = i.clone();
                    self.mention(&i);
                    if self.is_dim(&i.to_string()) {
                        let d = dim_ident(&i);
                        *e = parse_quote_spanned!(i.span()=> #d)
                    }
                }
            }
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.visit_expr_mut(&mut r.expr),
            Expr::Closure(c) => {
                let r = self.regions.len();
                self.frames.push(Frame::Fence { regions: r });
                let ins: Vec<Pat> = c.inputs.iter().cloned().collect();
                self.scoped(|s| {
                    ins.iter().for_each(|p| s.bind(p, false));
                    s.visit_expr_mut(&mut c.body)
                });
                self.frames.pop();
            }
            Expr::Reference(r) if r.mutability.is_some() => {
                self.assign(&r.expr);
                self.visit_expr_mut(&mut r.expr)
            }
            Expr::Assign(a) => {
                self.visit_expr_mut(&mut a.right);
                if !matches!(&*a.left, Expr::Path(_)) {
                    self.visit_expr_mut(&mut a.left)
                }
                self.assign(&a.left);
                self.uninit(&a.left.clone(), e)
            }
            Expr::Binary(b) => self.binary(b.clone(), e),
            Expr::If(_) => self.iff(e),
            Expr::ForLoop(_) => self.forr(e),
            Expr::While(_) => self.whilee(e),
            Expr::Loop(l) => {
                let r = self.regions.len();
                self.frames.push(Frame::Loop {
                    label: l.label.as_ref().map(|l| l.name.clone()),
                    made: false,
                    target: None,
                    regions: r,
                    block: false,
                });
                self.visit_block_mut(&mut l.body);
                if let Some(Frame::Loop { label: Some(n), made: true, .. }) = self.frames.pop() {
                    l.label = Some(parse_quote_spanned!(n.span()=> #n:))
                }
            }
            Expr::Block(b) if b.label.is_some() => {
                let r = self.regions.len();
                self.frames.push(Frame::Loop {
                    label: b.label.as_ref().map(|l| l.name.clone()),
                    made: false,
                    target: None,
                    regions: r,
                    block: true,
                });
                self.visit_block_mut(&mut b.block);
                self.frames.pop();
            }
            Expr::Break(b) => {
                if let Some(x) = &mut b.expr {
                    self.visit_expr_mut(x)
                }
                if let Some((l, c)) = self.leave(b.label.as_ref(), "break", b.break_token.span) {
                    b.label = l;
                    if !c.is_empty() {
                        let b = b.clone();
                        *e = parse_quote_spanned!(b.span()=> { #(#c)* #b })
                    }
                }
            }
            Expr::Continue(b) => {
                if let Some((l, c)) = self.leave(b.label.as_ref(), "continue", b.continue_token.span) {
                    b.label = l;
                    if !c.is_empty() {
                        let b = b.clone();
                        *e = parse_quote_spanned!(b.span()=> { #(#c)* #b })
                    }
                }
            }
            Expr::Return(b) => {
                if let Some(x) = &mut b.expr {
                    self.visit_expr_mut(x)
                }
                if let Some((_, c)) = self.leave(None, "return", b.return_token.span)
                    && !c.is_empty()
                {
                    let b = b.clone();
                    *e = parse_quote_spanned!(b.span()=> { #(#c)* #b })
                }
            }
            _ => visit_mut::visit_expr_mut(self, e),
        }
    }
}

/// a call whose path and parentheses carry the user's span: `Location::caller()` then gives it
fn call(sp: Span, path: TokenStream, args: TokenStream) -> TokenStream {
    let mut g = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, args);
    g.set_span(sp);
    quote!(#path #g)
}
/// a block whose braces carry the user's span: an operator beside it keeps its location
fn braced(sp: Span, inner: TokenStream) -> Expr {
    let mut g = proc_macro2::Group::new(proc_macro2::Delimiter::Brace, inner);
    g.set_span(sp);
    Expr::Verbatim(quote!(#g))
}
/// without the parentheses a new place makes superfluous (else rustc's `unused_parens` warns, with a broken suggestion)
fn bare(mut e: &Expr) -> &Expr {
    while let Expr::Paren(p) = e {
        e = &p.expr
    }
    e
}
fn first(e: &Expr) -> Span {
    e.to_token_stream().into_iter().next().map_or_else(Span::call_site, |t| t.span())
}

/// The same tokens at another span.
fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut t| {
            if let TokenTree::Group(g) = &t {
                let mut new = proc_macro2::Group::new(g.delimiter(), respan(g.stream(), span));
                new.set_span(span);
                return TokenTree::Group(new);
            }
            t.set_span(span);
            t
        })
        .collect()
}
