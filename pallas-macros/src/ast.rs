//! Syntax of a kernel: the attribute, and parameters with their specs. Every part keeps its tokens, so errors point at
//! them.
use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{BinOp, Expr, Ident, Pat, Token, Type, bracketed, parenthesized};

/// Options in the parentheses of `#[kernel(..)]`, as they were written.
#[derive(Default)]
pub(crate) struct KernelOptions {
    /// Extents of the grid, slowest axis first.
    pub(crate) grid: Vec<Expr>,
    /// The tokens of `grid`, for errors.
    pub(crate) grid_tokens: Option<Expr>,
    /// Semantics of the grid's axes, `parallel` or `arbitrary` each, and their tokens.
    pub(crate) semantics: Option<(Vec<Ident>, TokenStream)>,
    /// Faults of the strict interpreter that are intended: `overflow`, `lost_store`.
    pub(crate) allow: Vec<Ident>,
    /// Pairs of sizes that `assume` declares equal.
    pub(crate) assume: Vec<(Expr, Expr)>,
    /// The tokens of each pair in `assume`, for errors.
    pub(crate) assumed: Vec<Expr>,
    /// Candidates `BQ = [32, 64]`, one entry per tuned size.
    pub(crate) tune: Option<Vec<Expr>>,
    /// Condition that selects the candidates among combinations.
    pub(crate) tune_if: Option<Expr>,
    /// Path of the crate `pallas_rt`, if it is renamed.
    pub(crate) root: Option<syn::Path>,
    /// Errors about options that are unknown or given twice.
    pub(crate) wrong: Vec<syn::Error>,
    /// True if a later part could not be read, so that missing options are not reported.
    pub(crate) unread: bool,
}

/// Role of a kernel's parameter: an operand of one of four kinds, a run-time scalar, or a value of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParameterRole {
    Input,
    Output,
    Prefetch,
    Scratch,
    /// A run-time scalar parameter.
    Param,
    /// A `#[fixed]` value of the host, known while tracing.
    Fixed,
    /// A `#[dim]` parameter, which gives a named dimension its size.
    Dim,
}

/// A parameter of the kernel, with its specs.
pub(crate) struct Parameter {
    pub(crate) name: Ident,
    pub(crate) pat: Pat,
    pub(crate) ty: Type,
    pub(crate) role: ParameterRole,
    pub(crate) block: Option<BlockSpec>,
    /// Sizes of `#[scratch([..])]` or `#[prefetch([..])]`.
    pub(crate) sizes: Option<Vec<Expr>>,
    /// Other attributes, such as `#[cfg]`, which stay on the function's parameter.
    pub(crate) attrs: Vec<syn::Attribute>,
    /// True if a spec could not be read, so that missing ones are not reported.
    pub(crate) unread: bool,
}

/// The attribute `#[block([dims] => [block], |..| (..), fill = ..)]` of an operand: sizes of the array and of a block,
/// index map, and options.
pub(crate) struct BlockSpec {
    pub(crate) dims: Vec<Expr>,
    /// Shape of a block; `None`: the whole array.
    pub(crate) block: Option<Vec<BlockSize>>,
    pub(crate) block_tokens: TokenStream,
    pub(crate) map: Option<syn::ExprClosure>,
    pub(crate) fill: Option<Expr>,
    pub(crate) buffered: Option<Expr>,
    pub(crate) empty: Option<Expr>,
    pub(crate) alias: Option<Ident>,
    /// Errors about options that are unknown or given twice.
    pub(crate) wrong: Vec<syn::Error>,
}

/// Extent of a block along one dimension.
pub(crate) enum BlockSize {
    /// Squeezed: written `_`.
    Squeezed,
    /// A size in elements.
    Blocked(Expr),
    /// A block at any offset: `Element(size, low, high)`.
    Element(Box<[Expr; 3]>),
}

impl Parse for BlockSize {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Token![_]) {
            input.parse::<Token![_]>()?;
            return Ok(BlockSize::Squeezed);
        }
        let e: Expr = input.parse()?;
        let Expr::Call(call) = &e else { return Ok(BlockSize::Blocked(e)) };
        if !matches!(&*call.func, Expr::Path(p) if p.path.is_ident("Element")) {
            return Ok(BlockSize::Blocked(e));
        }
        let arg = |i: usize| call.args.get(i).cloned().unwrap_or_else(|| syn::parse_quote!(0));
        if call.args.is_empty() || call.args.len() > 3 {
            return Err(syn::Error::new_spanned(
                &e,
                "`Element` takes a size, and the padding in front and behind\n  help: write `Element(4)` or `Element(4, 1, 1)`",
            ));
        }
        Ok(BlockSize::Element(Box::new([arg(0), arg(1), arg(2)])))
    }
}

impl Parse for BlockSpec {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let content;
        bracketed!(content in input);
        let dims = Punctuated::<Expr, Token![,]>::parse_terminated(&content)?.into_iter().collect();
        let mut block = BlockSpec {
            dims,
            block: None,
            block_tokens: TokenStream::new(),
            map: None,
            fill: None,
            buffered: None,
            empty: None,
            alias: None,
            wrong: vec![],
        };
        if input.peek(Token![=>]) {
            input.parse::<Token![=>]>()?;
            let content;
            bracketed!(content in input);
            block.block_tokens = content.fork().parse()?;
            let sizes = Punctuated::<BlockSize, Token![,]>::parse_terminated(&content)?;
            block.block = Some(sizes.into_iter().collect());
        }
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            if input.peek(Token![|]) || input.peek(Token![||]) {
                let map: syn::ExprClosure = input.parse()?;
                if block.map.is_some() {
                    let message = "a second index map\n  help: one map gives all indices: `|i, j| (i, j)`";
                    block.wrong.push(syn::Error::new_spanned(map, message));
                } else {
                    block.map = Some(map);
                }
                continue;
            }
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let again = match key.to_string().as_str() {
                "fill" => block.fill.replace(input.parse()?).is_some(),
                "buffered" => block.buffered.replace(input.parse()?).is_some(),
                "empty" => block.empty.replace(input.parse()?).is_some(),
                "alias" => block.alias.replace(input.parse()?).is_some(),
                other => {
                    let help = "options are an index map `|i| (i, 0)`, `fill`, `buffered`, `empty` and `alias`";
                    let message = format!("unknown block option `{other}`\n  help: {help}");
                    block.wrong.push(syn::Error::new(key.span(), message));
                    input.parse::<Expr>()?;
                    false
                }
            };
            if again {
                block.wrong.push(duplicate_option_error(&key));
            }
        }
        Ok(block)
    }
}

/// Error about an option that is given twice.
fn duplicate_option_error(key: &Ident) -> syn::Error {
    syn::Error::new(key.span(), format!("`{key}` is given twice\n  help: keep one of them"))
}

impl Parse for KernelOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = KernelOptions::default();
        let mut given: Vec<Ident> = vec![];
        while !input.is_empty() {
            let key = input.call(<Ident as syn::ext::IdentExt>::parse_any)?;
            if given.contains(&key) {
                options.wrong.push(duplicate_option_error(&key));
            }
            parse_option(&mut options, &key, input)?;
            given.push(key);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// Reads the value of one option.
fn parse_option(options: &mut KernelOptions, key: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
    match key.to_string().as_str() {
        "crate" => {
            input.parse::<Token![=]>()?;
            options.root = Some(input.parse()?);
        }
        "grid" => {
            input.parse::<Token![=]>()?;
            let grid: Expr = input.parse()?;
            options.grid = match &grid {
                Expr::Tuple(t) => t.elems.iter().cloned().collect(),
                Expr::Paren(p) => vec![(*p.expr).clone()],
                other => vec![other.clone()],
            };
            options.grid_tokens = Some(grid);
        }
        "semantics" => {
            input.parse::<Token![=]>()?;
            let content;
            parenthesized!(content in input);
            let tokens = content.fork().parse()?;
            let names = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?;
            options.semantics = Some((names.into_iter().collect(), tokens));
        }
        "allow" => {
            let content;
            parenthesized!(content in input);
            options.allow = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?.into_iter().collect();
            for other in options.allow.iter().filter(|name| !ALLOW_ARGUMENTS.iter().any(|allowed| *name == allowed)) {
                let message = format!("unknown fault `{other}`\n  help: `allow` takes `overflow` and `lost_store`");
                options.wrong.push(syn::Error::new(other.span(), message));
            }
        }
        "assume" => {
            let content;
            parenthesized!(content in input);
            for fact in Punctuated::<Expr, Token![,]>::parse_terminated(&content)? {
                match &fact {
                    Expr::Binary(b) if matches!(b.op, syn::BinOp::Eq(_)) => {
                        options.assume.push(((*b.left).clone(), (*b.right).clone()));
                        options.assumed.push(fact.clone());
                    }
                    other => {
                        let message = "`assume` takes equalities\n  help: write `assume(BQ == BK)`";
                        options.wrong.push(syn::Error::new_spanned(other, message));
                    }
                }
            }
        }
        "tune" => {
            let content;
            parenthesized!(content in input);
            options.tune = Some(Punctuated::<Expr, Token![,]>::parse_terminated(&content)?.into_iter().collect());
        }
        "tune_if" => {
            input.parse::<Token![=]>()?;
            options.tune_if = Some(input.parse()?);
        }
        other => {
            options.wrong.push(syn::Error::new(key.span(), unknown_option_message(other)));
            while !input.is_empty() && !input.peek(Token![,]) {
                input.parse::<proc_macro2::TokenTree>()?;
            }
        }
    }
    Ok(())
}

/// Arguments that `allow(..)` takes.
const ALLOW_ARGUMENTS: [&str; 2] = ["overflow", "lost_store"];

/// Message about an option that does not exist.
fn unknown_option_message(key: &str) -> String {
    let options =
        "`grid = (..)`, `semantics = (..)`, `assume(..)`, `allow(..)`, `tune(..)`, `tune_if = ..` and `crate = path`";
    format!("unknown kernel option `{key}`\n  help: options are {options}")
}

/// Errors collected over a kernel, reported together.
#[derive(Default)]
pub(crate) struct Errors(Vec<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, e: syn::Error) {
        self.0.push(e);
    }
    /// Adds an error that points at these tokens; `help` says what to write instead.
    pub(crate) fn push_at(&mut self, tokens: impl quote::ToTokens, message: impl Into<String>, help: &str) {
        let message: String = message.into();
        let text = if help.is_empty() { message } else { format!("{message}\n  help: {help}") };
        self.push(syn::Error::new_spanned(tokens, text));
    }
    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = syn::Error>) {
        self.0.extend(errors);
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Returns the tokens of a `compile_error!` for each error.
    pub(crate) fn to_compile_errors(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).map(|e| quote::quote!(#e;)).collect()
    }
}
impl IntoIterator for Errors {
    type Item = syn::Error;
    type IntoIter = std::vec::IntoIter<syn::Error>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Returns true for an assigning operator: `+=` and the like.
pub(crate) fn is_assigning(op: &BinOp) -> bool {
    matches!(
        op,
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
    )
}
