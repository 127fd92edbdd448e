//! Tokens and their spans, which rustc's messages and `Location::caller()` show.
use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use std::collections::HashSet;
use syn::{Expr, Ident};

/// Every identifier within the tokens.
pub(crate) fn idents(tokens: TokenStream) -> HashSet<String> {
    let mut found = HashSet::new();
    for_each_ident(tokens, &mut |i| {
        found.insert(i.to_string());
    });
    found
}

/// Calls `f` with every identifier within the tokens.
pub(super) fn for_each_ident(tokens: TokenStream, f: &mut impl FnMut(&Ident)) {
    for token in tokens {
        match token {
            TokenTree::Ident(i) => f(&i),
            TokenTree::Group(g) => for_each_ident(g.stream(), f),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Name of a dimension's variable in the body: changed, since an item of the same name would turn the binding into a
/// pattern.
pub(crate) fn dim_variable_ident(i: &Ident) -> Ident {
    Ident::new(&format!("__dim_{}", i.to_string().trim_start_matches("r#")), i.span())
}

/// Identifier of a name that may be raw, such as `r#type`.
pub(crate) fn ident_from_name(name: &str) -> Ident {
    match name.strip_prefix("r#") {
        Some(bare) => Ident::new_raw(bare, Span::call_site()),
        None => Ident::new(name, Span::call_site()),
    }
}

/// Tokens of a call whose parentheses carry the user's span, so that `Location::caller()` gives it.
pub(super) fn spanned_call(span: Span, path: TokenStream, args: TokenStream) -> TokenStream {
    let mut parentheses = Group::new(Delimiter::Parenthesis, args);
    parentheses.set_span(span);
    quote!(#path #parentheses)
}

/// Tokens of a block whose braces carry the user's span, so that an operator next to it keeps its location.
pub(super) fn spanned_block(span: Span, inner: TokenStream) -> Expr {
    let mut braces = Group::new(Delimiter::Brace, inner);
    braces.set_span(span);
    Expr::Verbatim(quote!(#braces))
}

/// Strips parentheses that become superfluous when the expression moves: rustc's `unused_parens` would warn of them.
pub(super) fn strip_parentheses(mut e: &Expr) -> &Expr {
    while let Expr::Paren(p) = e {
        e = &p.expr
    }
    e
}

/// Span of an expression's first token.
pub(super) fn first_span(e: &Expr) -> Span {
    e.to_token_stream().into_iter().next().map_or_else(Span::call_site, |t| t.span())
}

/// Span of an expression's last token.
pub(super) fn last_span(e: &Expr) -> Span {
    e.to_token_stream().into_iter().last().map_or_else(Span::call_site, |t| t.span())
}

/// Returns the tokens with all of their spans replaced by `span`.
pub(super) fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    let moved = |mut token: TokenTree| {
        if let TokenTree::Group(g) = &token {
            token = Group::new(g.delimiter(), respan(g.stream(), span)).into();
        }
        token.set_span(span);
        token
    };
    tokens.into_iter().map(moved).collect()
}
