//! A `match` of numbers becomes a chain of `if`s, so that the type of the number determines when a condition is
//! decided.
//!
//! ```text
//! match x { 0 => a, 1..=3 | 7 => b, n if n > 9 => c, _ => d }
//! match x { whole => {
//!     let number = whole.matched(); // itself, or what a reference refers to
//!     if number == 0 { a } else if number >= 1 && number <= 3 || number == 7 { b }
//!     else if { let n = whole; n > 9 } { let n = whole; c } else { d }
//! } }
//! ```
use super::Rewrite;
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Lit, Pat, Token, parse_quote_spanned};

/// The test of an arm.
#[derive(Default)]
struct Test {
    /// The comparison of the number; `None` if the arm takes every number.
    holds: Option<TokenStream>,
    /// The name that the arm binds the number to.
    name: Option<syn::PatIdent>,
    /// True if one of the arm's patterns matches numbers only.
    number: bool,
}

impl Rewrite {
    /// Returns the chain of `if`s for a `match` whose patterns are numbers, ranges, names and `_` and whose last arm
    /// takes the rest.
    pub(super) fn compared(&self, m: &syn::ExprMatch, expect: Option<syn::Type>) -> Option<Expr> {
        if self.surely_host(&m.expr) || m.arms.iter().any(|a| !a.attrs.is_empty()) {
            return None;
        }
        let tests: Vec<Test> = m.arms.iter().map(|a| test(&a.pat)).collect::<Option<_>>()?;
        let rest = m.arms.last().filter(|last| last.guard.is_none())?;
        if !tests.iter().any(|t| t.number) || tests.last()?.holds.is_some() && !is_other_truth(m) {
            return None;
        }
        let mut arms = m.arms.iter().zip(&tests).rev();
        let (_, last) = arms.next()?;
        let mut chain = side(last, &rest.body, false);
        for (arm, test) in arms {
            let holds = condition(test, arm.guard.as_ref().map(|(_, guard)| &**guard), arm.pat.span());
            let (body, at) = (side(test, &arm.body, arm.guard.is_some()), arm.pat.span());
            chain = quote_spanned!(at=> if #holds #body else #chain);
        }
        let chain = match expect {
            Some(ty) => quote!(let value: #ty = #chain; value),
            None => chain,
        };
        Some(self.on_number(&m.expr, &chain, m.match_token.span))
    }
    /// Rewrites `matches!` of numbers.
    pub(super) fn tested(&self, m: &syn::Macro) -> Option<Expr> {
        let Matches { value, pattern, guard } = m.parse_body().ok()?;
        let test = test(&pattern).filter(|t| t.number)?;
        let holds = condition(&test, guard.as_ref(), pattern.span());
        Some(self.on_number(&value, &holds, m.path.span()))
    }
    fn on_number(&self, value: &Expr, then: &TokenStream, span: Span) -> Expr {
        let m = Span::mixed_site().located_at(span);
        let (root, whole, number) = (self.at(m), whole(span), number(span));
        parse_quote_spanned!(m=> match #value { #whole => {
            #[allow(unused_imports, reason = "one of several matches may serve all")] use #root::Matched as _;
            let #number = #whole.matched();
            #then
        } })
    }
}

fn whole(at: Span) -> Ident {
    Ident::new("__whole", Span::mixed_site().located_at(at))
}
fn number(at: Span) -> Ident {
    Ident::new("__number", Span::mixed_site().located_at(at))
}

/// The condition of an arm; with a guard, the number is bound to the arm's name.
fn condition(test: &Test, guard: Option<&Expr>, at: Span) -> TokenStream {
    let holds = test.holds.as_ref();
    let guard = guard.map(|guard| match named(test, true) {
        Some(name) => quote!({ #name #guard }),
        None => quote!((#guard)),
    });
    match (holds, guard) {
        (Some(holds), Some(guard)) => quote_spanned!(at=> (#holds) && #guard),
        (Some(one), None) => one.clone(),
        (None, Some(one)) => one,
        (None, None) => quote!(true),
    }
}
/// Returns an arm's body as a block.
fn side(test: &Test, body: &Expr, guarded: bool) -> TokenStream {
    match (named(test, guarded), body) {
        (None, Expr::Block(b)) if b.label.is_none() && b.attrs.is_empty() => quote!(#b),
        (name, body) => quote!({ #name #body }),
    }
}
/// `let n = whole;`. In an arm with a guard, both guard and body have one, and either may leave it unused.
fn named(test: &Test, guarded: bool) -> Option<TokenStream> {
    let name = test.name.as_ref()?;
    let (whole, m, ident) = (whole(name.span()), &name.mutability, &name.ident);
    let quiet = guarded.then(|| quote!(#[allow(unused_variables, unused_mut, reason = "guard and body share a name")]));
    Some(quote!(#quiet let #m #ident = #whole;))
}

/// Returns the test of a pattern; `None` for a pattern of anything but numbers.
fn test(p: &Pat) -> Option<Test> {
    let (at, n) = (p.span(), number(p.span()));
    let compared = |op: TokenStream, x: &Expr| quote_spanned!(at=> #n #op #x);
    let number = |holds| Some(Test { holds: Some(holds), name: None, number: true });
    match p {
        Pat::Wild(_) => Some(Test::default()),
        Pat::Paren(p) => test(&p.pat),
        Pat::Lit(l) if matches!(l.lit, Lit::Int(_) | Lit::Float(_) | Lit::Bool(_)) => {
            number(compared(quote_spanned!(at=> ==), &Expr::Lit(l.clone())))
        }
        Pat::Range(r) => {
            let bound = |e: &Option<Box<Expr>>| match e.as_deref() {
                Some(Expr::Lit(l)) if !matches!(l.lit, Lit::Int(_) | Lit::Float(_)) => None,
                e => Some(e.cloned()),
            };
            let below = if matches!(r.limits, syn::RangeLimits::Closed(_)) {
                quote_spanned!(at=> <=)
            } else {
                quote_spanned!(at=> <)
            };
            let (start, end) = (bound(&r.start)?, bound(&r.end)?);
            let start = start.map(|e| compared(quote_spanned!(at=> >=), &e));
            let end = end.map(|e| compared(below, &e));
            match (start, end) {
                (Some(start), Some(end)) => number(quote_spanned!(at=> (#start) && (#end))),
                (start, end) => number(start.or(end)?),
            }
        }
        Pat::Or(or) => {
            let cases: Vec<Test> = or.cases.iter().map(test).collect::<Option<_>>()?;
            if cases.iter().any(|c| c.name.is_some()) {
                return None;
            }
            let any = cases.iter().any(|c| c.number);
            // An alternative that always matches makes the others superfluous.
            let holds: Option<Vec<&TokenStream>> = cases.iter().map(|c| c.holds.as_ref()).collect();
            let holds = holds.map(|all| quote_spanned!(at=> #((#all))||*));
            Some(Test { holds, name: None, number: any })
        }
        Pat::Ident(p) if p.by_ref.is_none() => {
            // By Rust's convention, a name in capitals is a constant.
            if p.ident.to_string().starts_with(|c: char| c.is_ascii_uppercase()) {
                let constant = &p.ident;
                return Some(Test { holds: Some(quote_spanned!(at=> #n == #constant)), ..Test::default() });
            }
            let mut inner = p.subpat.as_ref().map_or_else(|| Some(Test::default()), |(_, inner)| test(inner))?;
            if inner.name.is_some() {
                return None;
            }
            inner.name = Some(syn::PatIdent { subpat: None, ..p.clone() });
            Some(inner)
        }
        Pat::Path(c) => Some(Test { holds: Some(quote_spanned!(at=> #n == #c)), ..Test::default() }),
        _ => None,
    }
}

/// Returns true if the last arm is `true` and an arm before it `false`, or the other way round.
fn is_other_truth(m: &syn::ExprMatch) -> bool {
    let truth = |a: &syn::Arm| match &a.pat {
        Pat::Lit(l) if a.guard.is_none() => match &l.lit {
            Lit::Bool(b) => Some(b.value),
            _ => None,
        },
        _ => None,
    };
    let mut truths = m.arms.iter().map(truth).rev();
    let last = truths.next().flatten();
    last.is_some_and(|last| truths.any(|other| other == Some(!last)))
}

/// The arguments of `matches!(value, pattern if guard)`.
struct Matches {
    value: Expr,
    pattern: Pat,
    guard: Option<Expr>,
}
impl Parse for Matches {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let value = input.parse()?;
        input.parse::<Token![,]>()?;
        let pattern = input.call(Pat::parse_multi_with_leading_vert)?;
        let guard = if input.parse::<Option<Token![if]>>()?.is_some() { Some(input.parse()?) } else { None };
        input.parse::<Option<Token![,]>>()?;
        Ok(Matches { value, pattern, guard })
    }
}
