//! A `match` of numbers, or of a tuple of them, becomes a chain of `if`s, so that the types of the numbers determine
//! when a condition is decided.
//!
//! ```text
//! match x { 0 => a, 1..=3 | 7 => b, n if n > 9 => c, _ => d }
//! match x { whole => {
//!     let number = whole.matched(); // itself, or what a reference refers to
//!     if number == 0 { a } else if number >= 1 && number <= 3 || number == 7 { b }
//!     else if { let n = whole; n > 9 } { let n = whole; c } else { d }
//! } }
//!
//! match (x, y) { (0, 1) => a, (n, _) => b }
//! match (x, y) { (whole0, whole1) => {
//!     let (number0, number1) = (whole0.matched(), whole1.matched());
//!     if number0 == 0 && number1 == 1 { a } else { let n = whole0; b }
//! } }
//! ```
use super::state::BodyRewriter;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use std::collections::BTreeSet;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Lit, Pat, Token, parse_quote_spanned};

/// Test whether a number, or a tuple of numbers, takes an arm.
#[derive(Default)]
struct PatternTest {
    /// Tokens of the comparison of the numbers; `None` if the arm takes every number.
    holds: Option<TokenStream>,
    /// Names that the arm binds the numbers to, each with its index in the tuple.
    names: Vec<(usize, syn::PatIdent)>,
    /// Indices in the tuple that are compared by a pattern which only numbers have.
    numbers: BTreeSet<usize>,
    /// Indices in the tuple that are compared by any pattern.
    compared: BTreeSet<usize>,
}

impl BodyRewriter {
    /// Returns the chain of `if`s for a `match` whose patterns are numbers, ranges, names and `_`, or tuples of these,
    /// and whose last arm takes the rest; `None` for any other, which stays a `match`.
    pub(super) fn match_to_if_chain(&self, m: &syn::ExprMatch, expected_type: Option<syn::Type>) -> Option<Expr> {
        if self.is_host_known(&m.expr) || m.arms.iter().any(|a| !a.attrs.is_empty()) {
            return None;
        }
        let places = tuple_length(&m.expr);
        let tests: Vec<PatternTest> = m.arms.iter().map(|a| arm_test(&a.pat, places)).collect::<Option<_>>()?;
        let rest = m.arms.last().filter(|last| last.guard.is_none())?;
        let numbers = number_indices(&tests)?;
        if tests.last()?.holds.is_some() && !is_exhaustive_bool(m) {
            return None;
        }
        // A guard copies what it names, and only numbers are known to allow that.
        let guarded = m.arms.iter().zip(&tests).filter(|(a, _)| a.guard.is_some());
        if places.is_some() && guarded.flat_map(|(_, t)| &t.names).any(|(place, _)| !numbers.contains(place)) {
            return None;
        }
        let mut arms = m.arms.iter().zip(&tests).rev();
        let (_, last) = arms.next()?;
        let mut chain = arm_block(last, &rest.body, false);
        for (arm, test) in arms {
            let holds = arm_condition(test, arm.guard.as_ref().map(|(_, guard)| &**guard), arm.pat.span());
            let (body, at) = (arm_block(test, &arm.body, arm.guard.is_some()), arm.pat.span());
            chain = quote_spanned!(at=> if #holds #body else #chain);
        }
        let chain = match expected_type {
            Some(ty) => quote!(let value: #ty = #chain; value),
            None => chain,
        };
        Some(self.bind_numbers(&m.expr, &numbers, &chain, m.match_token.span))
    }
    /// Rewrites `matches!` of numbers; `None` for other patterns.
    pub(super) fn rewrite_matches_macro(&self, m: &syn::Macro) -> Option<Expr> {
        let MatchesArguments { value, pattern, guard } = m.parse_body().ok()?;
        let test = [arm_test(&pattern, tuple_length(&value))?];
        let numbers = number_indices(&test)?;
        let holds = arm_condition(&test[0], guard.as_ref(), pattern.span());
        Some(self.bind_numbers(&value, &numbers, &holds, m.path.span()))
    }
    /// Binds the numbers of `value`, at these indices if it is a tuple, to hidden variables, and evaluates `then` with
    /// them.
    fn bind_numbers(&self, value: &Expr, tuple_indices: &BTreeSet<usize>, then: &TokenStream, span: Span) -> Expr {
        let m = Span::mixed_site().located_at(span);
        let root = self.root_path(m);
        let pattern = match tuple_length(value) {
            None => matched_value_variable(span, 0).to_token_stream(),
            Some(places) => {
                let wholes = (0..places).map(|place| matched_value_variable(span, place));
                quote_spanned!(m=> (#(#wholes,)*))
            }
        };
        let numbers = tuple_indices.iter().map(|&place| {
            let (whole, number) = (matched_value_variable(span, place), matched_number_variable(span, place));
            quote_spanned!(m=> let #number = #whole.matched();)
        });
        parse_quote_spanned!(m=> match #value { #pattern => {
            #[allow(unused_imports, reason = "one of several matches may serve all")] use #root::Matched as _;
            #(#numbers)*
            #then
        } })
    }
}

/// Number of elements of an expression that is written as a tuple; `None` for others.
fn tuple_length(e: &Expr) -> Option<usize> {
    match e {
        Expr::Tuple(t) => Some(t.elems.len()),
        Expr::Paren(p) => tuple_length(&p.expr),
        Expr::Group(g) => tuple_length(&g.expr),
        _ => None,
    }
}
/// Indices in the tuple at which numbers stand; `None` if there are none, or something else is compared as well.
fn number_indices(tests: &[PatternTest]) -> Option<BTreeSet<usize>> {
    let numbers: BTreeSet<usize> = tests.iter().flat_map(|t| &t.numbers).copied().collect();
    let compared = tests.iter().flat_map(|t| &t.compared).all(|place| numbers.contains(place));
    (!numbers.is_empty() && compared).then_some(numbers)
}

/// Hidden variable for a matched value.
fn matched_value_variable(span: Span, tuple_index: usize) -> Ident {
    Ident::new(&format!("__whole{tuple_index}"), Span::mixed_site().located_at(span))
}
/// Hidden variable for the number in a matched value.
fn matched_number_variable(span: Span, tuple_index: usize) -> Ident {
    Ident::new(&format!("__number{tuple_index}"), Span::mixed_site().located_at(span))
}

/// Returns tokens of the condition under which the rewritten `match` takes an arm: the comparison of its pattern and
/// its guard, inside of which the arm's names are bound; `true` if it has neither.
fn arm_condition(test: &PatternTest, guard: Option<&Expr>, at: Span) -> TokenStream {
    let holds = test.holds.as_ref();
    let guard = guard.map(|guard| match arm_bindings(test, true) {
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
/// Returns an arm's body as a block that begins with the bindings of the arm's names; `has_guard` is true if the arm
/// has a guard.
fn arm_block(test: &PatternTest, body: &Expr, has_guard: bool) -> TokenStream {
    match (arm_bindings(test, has_guard), body) {
        (None, Expr::Block(b)) if b.label.is_none() && b.attrs.is_empty() => quote!(#b),
        (name, body) => quote!({ #name #body }),
    }
}
/// Returns tokens `let n = whole;` for each name that an arm binds; `None` if it binds none. With `has_guard` they
/// allow unused names, since guard and body each begin with these bindings.
fn arm_bindings(test: &PatternTest, has_guard: bool) -> Option<TokenStream> {
    let names = test.names.iter().map(|(place, name)| {
        let (whole, m, ident) = (matched_value_variable(name.span(), *place), &name.mutability, &name.ident);
        let quiet =
            has_guard.then(|| quote!(#[allow(unused_variables, unused_mut, reason = "guard and body share a name")]));
        quote!(#quiet let #m #ident = #whole;)
    });
    (!test.names.is_empty()).then(|| names.collect())
}

/// Returns the test of an arm on a number, or on a tuple of `element_count` elements; `None` for a pattern of anything
/// else.
fn arm_test(p: &Pat, element_count: Option<usize>) -> Option<PatternTest> {
    let Some(places) = element_count else { return number_test(p, 0) };
    match p {
        Pat::Wild(_) => Some(PatternTest::default()),
        Pat::Paren(p) => arm_test(&p.pat, Some(places)),
        Pat::Or(or) => {
            any_pattern_test(or.cases.iter().map(|case| arm_test(case, Some(places))).collect::<Option<_>>()?, p.span())
        }
        Pat::Tuple(t) if t.elems.len() == places => {
            let elements = t.elems.iter().enumerate().map(|(place, p)| number_test(p, place));
            let mut all = PatternTest::default();
            for one in elements.collect::<Option<Vec<PatternTest>>>()? {
                all.holds = match (all.holds, one.holds) {
                    (Some(a), Some(b)) => Some(quote_spanned!(p.span()=> (#a) && (#b))),
                    (a, b) => a.or(b),
                };
                all.names.extend(one.names);
                all.numbers.extend(one.numbers);
                all.compared.extend(one.compared);
            }
            Some(all)
        }
        _ => None,
    }
}

/// Combines the tests of several patterns separated by `|`; `None` if one binds names.
fn any_pattern_test(cases: Vec<PatternTest>, at: Span) -> Option<PatternTest> {
    if cases.iter().any(|c| !c.names.is_empty()) {
        return None;
    }
    // If one of the patterns takes every number, no comparison is left.
    let holds: Option<Vec<&TokenStream>> = cases.iter().map(|c| c.holds.as_ref()).collect();
    let holds = holds.map(|all| quote_spanned!(at=> #((#all))||*));
    let numbers = cases.iter().flat_map(|c| &c.numbers).copied().collect();
    let compared = cases.iter().flat_map(|c| &c.compared).copied().collect();
    Some(PatternTest { holds, names: vec![], numbers, compared })
}

/// Returns the test of the number at `tuple_index` by a pattern; `None` for a pattern of anything else.
fn number_test(p: &Pat, tuple_index: usize) -> Option<PatternTest> {
    let (at, n) = (p.span(), matched_number_variable(p.span(), tuple_index));
    let compared = |op: TokenStream, x: &Expr| quote_spanned!(at=> #n #op #x);
    let here = || BTreeSet::from([tuple_index]);
    let number = |holds| Some(PatternTest { holds: Some(holds), names: vec![], numbers: here(), compared: here() });
    let constant = |holds| Some(PatternTest { holds: Some(holds), compared: here(), ..PatternTest::default() });
    match p {
        Pat::Wild(_) => Some(PatternTest::default()),
        Pat::Paren(p) => number_test(&p.pat, tuple_index),
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
            any_pattern_test(or.cases.iter().map(|case| number_test(case, tuple_index)).collect::<Option<_>>()?, at)
        }
        Pat::Ident(p) if p.by_ref.is_none() => {
            // By Rust's convention, a name in capitals is a constant.
            if p.ident.to_string().starts_with(|c: char| c.is_ascii_uppercase()) {
                let name = &p.ident;
                return constant(quote_spanned!(at=> #n == #name));
            }
            let mut inner = p
                .subpat
                .as_ref()
                .map_or_else(|| Some(PatternTest::default()), |(_, inner)| number_test(inner, tuple_index))?;
            if !inner.names.is_empty() {
                return None;
            }
            inner.names.push((tuple_index, syn::PatIdent { subpat: None, ..p.clone() }));
            Some(inner)
        }
        Pat::Path(c) => constant(quote_spanned!(at=> #n == #c)),
        _ => None,
    }
}

/// Returns true if the last arm is `true` and an earlier one `false`, or the other way round: then the last takes the
/// rest.
fn is_exhaustive_bool(m: &syn::ExprMatch) -> bool {
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
struct MatchesArguments {
    value: Expr,
    pattern: Pat,
    guard: Option<Expr>,
}
impl Parse for MatchesArguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let value = input.parse()?;
        input.parse::<Token![,]>()?;
        let pattern = input.call(Pat::parse_multi_with_leading_vert)?;
        let guard = if input.parse::<Option<Token![if]>>()?.is_some() { Some(input.parse()?) } else { None };
        input.parse::<Option<Token![,]>>()?;
        Ok(MatchesArguments { value, pattern, guard })
    }
}
