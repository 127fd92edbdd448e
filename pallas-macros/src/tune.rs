//! The options `tune(BQ = [32, 64], BK = [16, 32]), tune_if = BQ >= BK`: combinations of sizes, and a function next to
//! the kernel that runs the fastest of them.
//!
//! ```text
//! pub fn k_tuned(x: impl Input, scale: f32) -> Result<Array, Error> {
//!     let x: Array = array(x);
//!     let call = |which: usize, x: Array, scale| match which {
//!         0 => k::<32, 16>(x, scale), 1 => k::<32, 32>(x, scale), ..
//!     };
//!     let which = tune(Candidates { .. }, &|which| call(which, x.clone(), scale.clone()).map(|_| ()))?;
//!     call(which, x, scale)
//! }
//! ```
use crate::ast::{Errors, KernelOptions, Parameter, ParameterRole};
use crate::rewrite::idents;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{BinOp, Expr, Ident, ItemFn, UnOp};

/// Maximum number of combinations: each is compiled with the program, and timed.
const MAX_TUNED_COMBINATIONS: usize = 64;

/// Combinations of sizes to time.
pub(crate) struct Combinations {
    pub(crate) names: Vec<Ident>,
    /// Combinations, each a value for every name.
    pub(crate) values: Vec<Vec<u64>>,
}

/// Reads the combinations that the options declare; each mistake is one error at the user's token.
pub(crate) fn read_combinations(
    f: &ItemFn,
    options: &KernelOptions,
    parameters: &[Parameter],
    errors: &mut Errors,
) -> Option<Combinations> {
    let Some(lists) = &options.tune else {
        if let Some(condition) = &options.tune_if {
            errors.push_at(
                condition,
                "`tune_if` chooses among candidates, and there are none",
                "add `tune(BQ = [32, 64])`",
            );
        }
        return None;
    };
    let (mut names, mut values): (Vec<Ident>, Vec<Vec<u64>>) = (vec![], vec![vec![]]);
    let mut right = true;
    for entry in lists {
        match read_candidates(f, entry, &names, parameters) {
            Ok((name, sizes)) => {
                // The last name changes fastest.
                let with = |v: &Vec<u64>| sizes.iter().map(|&n| v.iter().copied().chain([n]).collect()).collect();
                values = values.iter().flat_map::<Vec<Vec<u64>>, _>(with).collect();
                names.push(name);
            }
            Err(e) => {
                errors.push(e);
                right = false;
            }
        }
    }
    if names.is_empty() && right {
        errors.push_at(&f.sig.ident, "`tune()` names no sizes", "write `tune(BQ = [32, 64], BK = [16, 32])`");
    }
    if names.is_empty() || !right {
        return None;
    }
    if let Some(condition) = &options.tune_if {
        let all = std::mem::take(&mut values);
        for combination in all {
            match satisfies_condition(condition, &names, &combination) {
                Ok(true) => values.push(combination),
                Ok(false) => {}
                Err(e) => {
                    errors.push(e);
                    return None;
                }
            }
        }
        if values.is_empty() {
            let help = "every combination is left out; change the lists or the condition";
            errors.push_at(condition, "no combination of candidates satisfies this", help);
            return None;
        }
    }
    if values.len() > MAX_TUNED_COMBINATIONS {
        let message = format!("{} combinations: each is compiled with the program and timed", values.len());
        errors.push_at(
            lists.last(),
            message,
            &format!("at most {MAX_TUNED_COMBINATIONS}; shorten the lists, or leave some out by `tune_if`"),
        );
        return None;
    }
    Some(Combinations { names, values })
}

/// Reads the candidates of one size: `BQ = [32, 64]`.
fn read_candidates(
    f: &ItemFn,
    entry: &Expr,
    names: &[Ident],
    parameters: &[Parameter],
) -> syn::Result<(Ident, Vec<u64>)> {
    let refuse =
        |tokens: &dyn ToTokens, message: String| Err(syn::Error::new_spanned(tokens.to_token_stream(), message));
    let shape = || refuse(entry, "`tune` takes lists of sizes\n  help: write `tune(BQ = [32, 64])`".into());
    let Expr::Assign(assign) = entry else { return shape() };
    let (Expr::Path(path), Expr::Array(array)) = (&*assign.left, &*assign.right) else { return shape() };
    let Some(name) = path.path.get_ident() else { return shape() };
    if !f.sig.generics.const_params().any(|c| c.ident == *name) {
        let help = format!("tuned sizes are const generics: `fn {}<const {name}: usize>(..)`", f.sig.ident);
        return refuse(name, format!("`{name}` is no const generic of this kernel\n  help: {help}"));
    }
    if names.contains(name) {
        return refuse(name, format!("`{name}` is given twice\n  help: keep one of them"));
    }
    if array.elems.is_empty() {
        return refuse(array, format!("`{name}` has no candidates\n  help: list some: `{name} = [32, 64]`"));
    }
    let blocks = parameters.iter().filter_map(|p| p.block.as_ref());
    let sizes_blocks = blocks.into_iter().any(|b| idents(b.block_tokens.clone()).contains(&name.to_string()));
    let mut sizes = vec![];
    for e in &array.elems {
        match integer_literal(e) {
            Some(0) if sizes_blocks => {
                return refuse(
                    e,
                    format!("`{name}` sizes a block, and a block has at least one element\n  help: leave 0 out"),
                );
            }
            Some(n) if sizes.contains(&n) => {
                return refuse(e, format!("{n} is a candidate twice\n  help: keep one of them"));
            }
            Some(n) => sizes.push(n),
            None => {
                return refuse(e, format!("a candidate is a plain number\n  help: write `{name} = [32, 64]`"));
            }
        }
    }
    Ok((name.clone(), sizes))
}

/// The value of an integer literal.
fn integer_literal(e: &Expr) -> Option<u64> {
    match e {
        Expr::Lit(l) => match &l.lit {
            syn::Lit::Int(n) => n.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// A value in a `tune_if` expression.
#[derive(Clone, Copy, PartialEq)]
enum ConditionValue {
    Number(i128),
    Truth(bool),
}

/// Returns true if a combination satisfies `tune_if`, false if not.
fn satisfies_condition(condition: &Expr, names: &[Ident], values: &[u64]) -> syn::Result<bool> {
    match evaluate(condition, names, values)? {
        ConditionValue::Truth(holds) => Ok(holds),
        ConditionValue::Number(_) => Err(unsupported_condition_error(condition)),
    }
}

/// Error about an expression that `tune_if` does not support.
fn unsupported_condition_error(e: &Expr) -> syn::Error {
    let message = "`tune_if` compares tuned sizes and numbers\n  help: write `tune_if = BQ >= BK && BQ * BK <= 4096`";
    syn::Error::new_spanned(e, message)
}

/// Evaluates a `tune_if` expression for a combination of sizes.
fn evaluate(e: &Expr, names: &[Ident], values: &[u64]) -> syn::Result<ConditionValue> {
    let again = |e: &Expr| evaluate(e, names, values);
    Ok(match e {
        Expr::Paren(p) => again(&p.expr)?,
        Expr::Group(g) => again(&g.expr)?,
        Expr::Lit(_) => {
            ConditionValue::Number(i128::from(integer_literal(e).ok_or_else(|| unsupported_condition_error(e))?))
        }
        Expr::Path(p) => {
            let found = p.path.get_ident().and_then(|name| names.iter().position(|n| n == name));
            let Some(at) = found else {
                let (text, known) = (p.to_token_stream().to_string(), names.iter().map(|n| format!("`{n}`")));
                let known = known.collect::<Vec<_>>().join(", ");
                let message = format!("`{text}` is not tuned\n  help: `tune_if` compares {known} and numbers");
                return Err(syn::Error::new_spanned(p, message));
            };
            ConditionValue::Number(i128::from(values[at]))
        }
        Expr::Unary(u) => match (&u.op, again(&u.expr)?) {
            (UnOp::Not(_), ConditionValue::Truth(x)) => ConditionValue::Truth(!x),
            (UnOp::Neg(_), ConditionValue::Number(x)) => ConditionValue::Number(-x),
            _ => return Err(unsupported_condition_error(e)),
        },
        Expr::Binary(b) => {
            evaluate_binary(&b.op, again(&b.left)?, again(&b.right)?).ok_or_else(|| unsupported_condition_error(e))?
        }
        _ => return Err(unsupported_condition_error(e)),
    })
}

/// Evaluates a binary operator; `None` if it is not defined for the operands.
fn evaluate_binary(op: &BinOp, a: ConditionValue, b: ConditionValue) -> Option<ConditionValue> {
    use ConditionValue::{Number, Truth};
    Some(match (op, a, b) {
        (BinOp::And(_), Truth(a), Truth(b)) => Truth(a && b),
        (BinOp::Or(_), Truth(a), Truth(b)) => Truth(a || b),
        (BinOp::Add(_), Number(a), Number(b)) => Number(a.checked_add(b)?),
        (BinOp::Sub(_), Number(a), Number(b)) => Number(a.checked_sub(b)?),
        (BinOp::Mul(_), Number(a), Number(b)) => Number(a.checked_mul(b)?),
        (BinOp::Div(_), Number(a), Number(b)) => Number(a.checked_div(b)?),
        (BinOp::Rem(_), Number(a), Number(b)) => Number(a.checked_rem(b)?),
        (BinOp::Eq(_), a, b) => Truth(a == b),
        (BinOp::Ne(_), a, b) => Truth(a != b),
        (BinOp::Lt(_), Number(a), Number(b)) => Truth(a < b),
        (BinOp::Le(_), Number(a), Number(b)) => Truth(a <= b),
        (BinOp::Gt(_), Number(a), Number(b)) => Truth(a > b),
        (BinOp::Ge(_), Number(a), Number(b)) => Truth(a >= b),
        _ => return None,
    })
}

/// Name of the function that tunes: the kernel's with the suffix `_tuned`.
pub(crate) fn tuned_name(f: &ItemFn) -> Ident {
    format_ident!("{}_tuned", f.sig.ident, span = f.sig.ident.span())
}

/// Generic parameters of the kernel without those that are tuned.
pub(crate) fn untuned_generics<'a>(
    f: &'a ItemFn,
    is_tuned: &'a dyn Fn(&Ident) -> bool,
) -> impl Iterator<Item = &'a syn::GenericParam> {
    let kept = |p: &&syn::GenericParam| !matches!(p, syn::GenericParam::Const(c) if is_tuned(&c.ident));
    f.sig.generics.params.iter().filter(kept)
}

/// Returns tokens of the function that times the kernel with each of the combinations in `found` and runs the fastest
/// one.
pub(crate) fn tuned_function(
    root: &TokenStream,
    f: &ItemFn,
    parameters: &[Parameter],
    found: &Combinations,
    inputs: &[TokenStream],
    result: &TokenStream,
) -> TokenStream {
    let mixed = Span::mixed_site();
    let (vis, kernel, own, clause) = (&f.vis, &f.sig.ident, tuned_name(f), &f.sig.generics.where_clause);
    let (kernel_name, names) = (kernel.to_string(), &found.names);
    let is_tuned = |ident: &Ident| names.contains(ident);
    let params = untuned_generics(f, &is_tuned);
    let (call, which) = (Ident::new("call", mixed), Ident::new("which", mixed));
    let taken: Vec<&Parameter> =
        parameters.iter().filter(|p| !matches!(p.role, ParameterRole::Output | ParameterRole::Scratch)).collect();
    let is_array = |p: &&&Parameter| matches!(p.role, ParameterRole::Input | ParameterRole::Prefetch);
    let all: Vec<&Ident> = taken.iter().map(|p| &p.name).collect();
    let arrays: Vec<&Ident> = taken.iter().filter(is_array).map(|p| &p.name).collect();
    let declared = taken.iter().map(|p| {
        let name = &p.name;
        if is_array(&p) { quote!(#name: #root::Array) } else { quote!(#name) }
    });
    let arms = found.values.iter().enumerate().map(|(i, values)| {
        let arguments = f.sig.generics.params.iter().filter_map(|p| match p {
            syn::GenericParam::Type(t) => Some(t.ident.to_token_stream()),
            syn::GenericParam::Const(c) => match names.iter().position(|n| *n == c.ident) {
                Some(at) => Some(proc_macro2::Literal::u64_unsuffixed(values[at]).to_token_stream()),
                None => Some(c.ident.to_token_stream()),
            },
            syn::GenericParam::Lifetime(_) => None,
        });
        quote!(#i => #kernel::<#(#arguments),*>(#(#all),*),)
    });
    let called = Ident::new("called", mixed);
    let (fixed, keys) = (Ident::new("fixed", mixed), fixed_keys(parameters, root));
    let given = parameters.iter().filter(|p| p.role == ParameterRole::Dim).map(|p| &p.name);
    let texts = names.iter().map(Ident::to_string);
    let values = found.values.iter().map(|v| quote!(&[#(#v),*]));
    let docs = f.attrs.iter().filter(|a| a.path().is_ident("doc") || a.path().is_ident("cfg"));
    let about =
        format!("\nThe fastest of [`{kernel_name}`]'s candidates for these arrays, timed at the first such call.");
    quote_spanned! {mixed=>
        #(#docs)*
        #[doc = #about]
        #[track_caller]
        #[allow(dead_code, reason = "who tunes one kernel of a module need not tune all")]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "dimensions keep their names; operands are many")]
        #[allow(clippy::clone_on_copy, reason = "what is cloned is of any type")]
        #vis fn #own<#(#params),*>(#(#inputs),*) -> ::core::result::Result<#result, #root::Error> #clause {
            #(let #arrays: #root::Array = #root::array(#arrays);)*
            let #call = |#which: usize, #(#declared),*| match #which { #(#arms)* _ => ::core::unreachable!() };
            let #fixed = #keys;
            let #called = #root::Loc::caller();
            let #which = #root::tune(
                #root::Candidates {
                    name: #kernel_name,
                    at: #root::Loc { file: ::core::file!(), line: ::core::line!(), column: ::core::column!() },
                    called: #called,
                    names: &[#(#texts),*],
                    values: &[#(#values),*],
                    fixed: &#fixed,
                    given: &[#(#given as i64),*],
                    arrays: &[#(&#arrays),*],
                },
                &|#which: usize| #call(#which, #(::core::clone::Clone::clone(&#all)),*).map(|_| ()),
            )?;
            #root::called_at(#called, #call(#which, #(#all),*))
        }
    }
}

/// Tokens of the keys of `#[fixed]` values, on which a trace depends: `[Fixed(&causal).fixed_key()]`.
pub(crate) fn fixed_keys(parameters: &[Parameter], root: &TokenStream) -> TokenStream {
    let fixed: Vec<&Ident> = parameters.iter().filter(|p| p.role == ParameterRole::Fixed).map(|p| &p.name).collect();
    let count = fixed.len();
    if count == 0 {
        return quote!([] as [#root::FixedKey<'_>; #count]);
    }
    let names = fixed.iter().map(|name| name.to_string());
    quote! {{
        #[allow(unused_imports, reason = "which of the three is used depends on the values' types")]
        use #root::{ByText as _, ByType as _, ByValue as _};
        [#((&&#root::Fixed(&#fixed)).fixed_key().named(#names)),*]
    }}
}
